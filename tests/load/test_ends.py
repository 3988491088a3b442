"""Networks with several inputs and outputs, against onnxruntime and torch, which take and give each by itself."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from commands import surebound as command
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import surebound
from surebound.cli.verify import vnncomp_text
from surebound.errors import NetworkError, PropertyError, UsageError
from surebound.evaluate.task import check_fits
from surebound.load.onnx import load_model
from surebound.load.torch import load_torch
from surebound.load.vnnlib import read_property
from surebound.network.model import Model
from surebound.problem import Port, Ports, Property
from surebound.verdict import Counterexample, Verdict
from surebound.verify.options import Options
from surebound.verify.pipeline import verify

Shapes = dict[str, list[Any]]


def save_graph(path: Path, nodes: Sequence[Any], inputs: Shapes, outputs: Shapes, **constants: Any) -> Path:
    graph = helper.make_graph(
        [helper.make_node(op, reads, writes, **more) for op, reads, writes, more in nodes],
        "several",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value, dtype=np.float32), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def save_pair(path: Path, *, batch: int | str = 1) -> Path:
    """y = relu(2 a − b) and z = b₀ + 10 a₀, of a with two elements and b with two."""
    nodes = [
        ("Mul", ["a", "two"], ["double"], {}),
        ("Sub", ["double", "b"], ["difference"], {}),
        ("Relu", ["difference"], ["y"], {}),
        ("MatMul", ["a", "ten"], ["from_a"], {}),
        ("MatMul", ["b", "one"], ["from_b"], {}),
        ("Add", ["from_a", "from_b"], ["z"], {}),
    ]
    inputs: Shapes = {"a": [batch, 2], "b": [batch, 2]}
    weights = {"two": 2.0, "ten": [[10.0], [0.0]], "one": [[1.0], [0.0]]}
    return save_graph(path, nodes, inputs, {"z": [batch, 1], "y": [batch, 2]}, **weights)


def save_image(path: Path, rng: np.random.Generator) -> Path:
    """An image and what is said about it, to a box of four numbers, the image again, and scores."""
    nodes = [
        ("Conv", ["image", "kernel"], ["seen"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["seen"], ["active"], {}),
        ("Flatten", ["active"], ["flat"], {}),
        ("MatMul", ["flat", "w"], ["from_image"], {}),
        ("Add", ["said", "shift"], ["shifted"], {}),
        ("MatMul", ["shifted", "v"], ["from_said"], {}),
        ("Add", ["from_image", "from_said"], ["sum"], {}),
        ("Relu", ["sum"], ["hidden"], {}),
        ("MatMul", ["hidden", "scores_of"], ["scores"], {}),
        ("Sub", ["hidden", "shift"], ["where"], {}),
    ]
    inputs: Shapes = {"image": [1, 2, 3, 4], "unused": [3], "said": ["N", 4], "shift": []}
    outputs: Shapes = {"where": [1, 4], "active": [1, 3, 3, 4], "scores": [1, 5]}
    shapes = {"kernel": (3, 2, 3, 3), "w": (36, 4), "v": (4, 4), "scores_of": (4, 5)}
    return save_graph(path, nodes, inputs, outputs, **{name: rng.normal(size=s) for name, s in shapes.items()})


def run_by_name(path: Path, feeds: dict[str, NDArray[np.float32]], names: Sequence[str]) -> list[NDArray[Any]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(list(names), feeds)]


def forward(model: Model, x: NDArray[Any]) -> NDArray[np.float64]:
    points = torch.from_numpy(np.asarray(x, dtype=np.float64)).reshape(-1, *model.network.input_shape)
    return model.network.forward(points).flatten(1).numpy()


def test_inputs_and_outputs_are_those_of_the_file_in_its_order(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save_image(tmp_path / "image.onnx", rng)
    model = load_model(path)
    shapes = {"image": (1, 2, 3, 4), "unused": (3,), "said": (1, 4), "shift": ()}
    assert model.ports.inputs == tuple(Port(name, shape) for name, shape in shapes.items())
    assert [port.name for port in model.ports.outputs] == ["where", "active", "scores"]
    assert (model.network.inputs, model.network.outputs) == (24 + 3 + 4 + 1, 4 + 36 + 5)
    points = rng.normal(size=(5, model.network.inputs)).astype(np.float32)
    replayed = model.replay(points)
    for point, ours, theirs in zip(points, forward(model, points), replayed, strict=True):
        image, unused, said, shift = np.split(point, [24, 27, 31])
        feeds = {"shift": shift.reshape(()), "said": said[None], "unused": unused, "image": image.reshape(1, 2, 3, 4)}
        where, active, scores = run_by_name(path, feeds, ["where", "active", "scores"])
        expected = np.concatenate([where.reshape(-1), active.reshape(-1), scores.reshape(-1)])
        np.testing.assert_array_equal(theirs, expected)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, "N", 3])
def test_several_outputs_of_one_input_are_replayed_in_batches(
    tmp_path: Path, rng: np.random.Generator, batch: int | str
) -> None:
    nodes = [("Relu", ["x"], ["y"], {}), ("MatMul", ["y", "w"], ["z"], {})]
    outputs: Shapes = {"z": [batch, 2], "y": [batch, 3]}
    weight = rng.normal(size=(3, 2)).astype(np.float32)
    model = load_model(save_graph(tmp_path / "net.onnx", nodes, {"x": [batch, 3]}, outputs, w=weight))
    assert model.network.input_shape == (3,)
    x = rng.normal(size=(7, 3)).astype(np.float32)
    expected = np.concatenate([np.maximum(x, 0) @ weight, np.maximum(x, 0)], axis=1)
    np.testing.assert_allclose(model.replay(x), expected, rtol=1e-5)
    np.testing.assert_allclose(forward(model, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["interval", "crown", "alpha-crown", "deepz", "planet-lp"])
def test_bounds_contain_samples(tmp_path: Path, rng: np.random.Generator, method: str) -> None:
    model = load_model(save_image(tmp_path / "image.onnx", rng))
    centre = rng.normal(size=model.network.inputs)
    found = surebound.bounds(model, (centre - 0.3, centre + 0.3), method=method)  # type: ignore[operator]
    y = forward(model, centre + 0.3 * rng.uniform(-1, 1, size=(2000, model.network.inputs)))
    assert (found.lower[-1].flatten().numpy() <= y.min(0)).all() and (
        found.upper[-1].flatten().numpy() >= y.max(0)
    ).all()


# ---- properties

PAIR_2 = """(vnnlib-version <2.0>)
(declare-network N
    (declare-input  First  float32 [1,2])
    (declare-input  Second float32 [1,2])
    (declare-output Sum    float32 [1])
    (declare-output Rest   float32 [1,2])
)
(assert (and (<= First[0,0] 1.0) (>= First[0,0] 0.0) (<= First[0,1] 0.5) (>= First[0,1] 0.25)))
(assert (and (<= Second[0,0] 4.0) (>= Second[0,0] 3.0) (<= Second[0,1] -1.0) (>= Second[0,1] -2.0)))
"""
PAIR_1 = (
    "".join(f"(declare-const X_{i} Real)" for i in range(4))
    + "".join(f"(declare-const Y_{i} Real)" for i in range(3))
    + "(assert (and (<= X_0 1.0) (>= X_0 0.0) (<= X_1 0.5) (>= X_1 0.25)))"
    + "(assert (and (<= X_2 4.0) (>= X_2 3.0) (<= X_3 -1.0) (>= X_3 -2.0)))"
)
# Over that box: Sum = Second₀ + 10 First₀ in [3, 14], Rest₀ = relu(2 First₀ − Second₀) = 0, Rest₁ in [1.5, 3].
CLAIMS = [
    ("(assert (>= Sum[0] 14.001))", "(assert (>= Y_0 14.001))", "unsat"),
    ("(assert (>= Sum[0] 13.999))", "(assert (>= Y_0 13.999))", "sat"),
    ("(assert (>= Rest[0,0] 0.001))", "(assert (>= Y_1 0.001))", "unsat"),
    ("(assert (<= Rest[0,0] 0.0))", "(assert (<= Y_1 0.0))", "sat"),
    ("(assert (<= Rest[0,1] 1.499))", "(assert (<= Y_2 1.499))", "unsat"),
    ("(assert (<= Rest[0,1] 1.501))", "(assert (<= Y_2 1.501))", "sat"),
    ("(assert (>= Rest[0,1] (+ Sum[0] 0.001)))", "(assert (>= Y_2 (+ Y_0 0.001)))", "unsat"),  # equal at First₀ = 0
    ("(assert (>= (+ Second[0,1] Rest[0,1]) 1.001))", "(assert (>= (+ X_3 Y_2) 1.001))", "unsat"),  # = 2 First₁
    ("(assert (>= (+ Second[0,1] Rest[0,1]) 0.999))", "(assert (>= (+ X_3 Y_2) 0.999))", "sat"),
]


@pytest.mark.parametrize(("second", "first", "status"), CLAIMS)
@pytest.mark.parametrize("branching", ["auto", "upb", "input"])
def test_both_versions_say_the_same(tmp_path: Path, second: str, first: str, status: str, branching: str) -> None:
    pytest.importorskip("vnnlib")
    path = save_pair(tmp_path / "pair.onnx")
    for name, text in (("two.vnnlib", PAIR_2 + second), ("one.vnnlib", PAIR_1 + first)):
        (tmp_path / name).write_text(text)
        verdict = surebound.verify(path, tmp_path / name, branching=branching, timeout=60)  # type: ignore[operator]
        assert verdict.status == status
        if verdict.counterexample is not None:
            x, y = verdict.counterexample.x.astype(np.float32), verdict.counterexample.y
            z, rest = run_by_name(path, {"a": x[None, :2], "b": x[None, 2:]}, ["z", "y"])
            assert [*z.reshape(-1), *rest.reshape(-1)] == y.tolist()
            assert read_property(tmp_path / name).regions[0].holds(verdict.counterexample.x, y.astype(np.float64))


def save_random(path: Path, rng: np.random.Generator) -> Path:
    """Three inputs that are mixed by ReLUs, and two outputs."""
    inputs: Shapes = {"c": [1, 1], "a": [2], "b": [1, 2, 1]}
    nodes: list[Any] = [("Reshape", [name, "row"], [f"{name}_row"], {}) for name in inputs]
    nodes += [("MatMul", [f"{name}_row", f"from_{name}"], [f"{name}_part"], {}) for name in inputs]
    nodes += [
        ("Sum", ["a_part", "b_part", "c_part"], ["sum"], {}),
        ("Relu", ["sum"], ["hidden"], {}),
        ("MatMul", ["hidden", "to_y"], ["y"], {}),
        ("Neg", ["c_row"], ["turned"], {}),
        ("MatMul", ["hidden", "to_z"], ["z_part"], {}),
        ("Add", ["z_part", "turned"], ["z"], {}),
    ]
    shapes = {"from_a": (2, 6), "from_b": (2, 6), "from_c": (1, 6), "to_y": (6, 2), "to_z": (6, 1)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    path = save_graph(path, nodes, inputs, {"z": [1, 1], "y": [1, 2]}, **weights)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "row"))
    onnx.save(model, path)
    return path


def test_no_verdict_contradicts_onnxruntime(tmp_path: Path, rng: np.random.Generator) -> None:
    """The least value of a row over both outputs and an input, among many points that onnxruntime is given by name."""
    pytest.importorskip("vnnlib")
    for number in range(10):
        path, prop = save_random(tmp_path / f"{number}.onnx", rng), tmp_path / f"{number}.vnnlib"
        points = rng.uniform(-1, 1, size=(400, 5)).astype(np.float32)
        row = rng.normal(size=4).astype(np.float32).astype(float)
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        values = []
        for x in points:
            y, z = session.run(["y", "z"], {"a": x[1:3], "b": x[3:].reshape(1, 2, 1), "c": x[:1, None]})
            values.append(row @ [z[0, 0], *y[0], x[4]])
        terms = " ".join(f"(* {c:.9f} {v})" for c, v in zip(row, ("Z[0,0]", "Y[0,0]", "Y[0,1]", "B[1]"), strict=True))
        names = ("C", "A[0]", "A[1]", "B[0]", "B[1]")
        text = "(vnnlib-version <2.0>)\n(declare-network N (declare-input C float32 [])(declare-input A float32 [2])"
        text += "(declare-input B float32 [2])(declare-output Z float32 [1,1])(declare-output Y float32 [1,2]))\n"
        text += "".join(f"(assert (<= {name} 1.0))(assert (>= {name} -1.0))" for name in names)
        statuses = []
        for threshold in (min(values) + 0.01, min(values) - 30.0):
            prop.write_text(text + f"(assert (<= (+ {terms}) {threshold:.6f}))")
            statuses.append(surebound.verify(path, prop, timeout=60).status)  # type: ignore[operator]
        assert statuses == ["sat", "unsat"], number


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("First  float32 [1,2]", "First  float32 [1,2,1]"), None),  # a shape of as many elements is taken
        (("(declare-output Sum    float32 [1])\n", ""), "4 inputs and 2 outputs, but the network has 4 inputs and 3"),
        (("Sum    float32 [1]", "Sum    float32 [1,2]"), "4 outputs, but"),
        (("Second float32 [1,2]", "Second float32 [1,1]"), "3 inputs"),
    ],
)
def test_what_is_declared_has_to_fit(tmp_path: Path, change: tuple[str, str], complaint: str | None) -> None:
    pytest.importorskip("vnnlib")
    text = PAIR_2.replace(*change)
    for old, new in (("First[0,0]", "First[0,0,0]"), ("First[0,1]", "First[0,1,0]")) if "[1,2,1]" in text else ():
        text = text.replace(old, new)
    if "Second float32 [1,1]" in text:
        text = text.replace(" (<= Second[0,1] -1.0) (>= Second[0,1] -2.0)", "")
    file = tmp_path / "p.vnnlib"
    file.write_text(text + "(assert (<= Rest[0,0] -1.0))")
    path = save_pair(tmp_path / "pair.onnx")
    if complaint is None:
        assert surebound.verify(path, file, timeout=60).status == "unsat"  # type: ignore[operator]
        return
    with pytest.raises(PropertyError, match=complaint):
        surebound.verify(path, file)  # type: ignore[operator]


def test_as_many_numbers_are_not_enough(tmp_path: Path) -> None:
    """A network of outputs with 1 and 2 elements is not one with 2 and 1, or with 3."""
    model = load_model(save_pair(tmp_path / "pair.onnx"))
    inputs = (Port("A", (2,)), Port("B", (2,)))
    for outputs in ((Port("Y", (2,)), Port("Z", (1,))), (Port("Y", (3,)),)):
        with pytest.raises(
            PropertyError, match=r"declares the outputs 'Y' of shape .* but the network has 'z' of shape"
        ):
            model.check_fits(Property((), 4, 3, ports=Ports(inputs, outputs)))
    with pytest.raises(PropertyError, match="declares the inputs 'A' of shape"):
        model.check_fits(Property((), 4, 3, ports=Ports((Port("A", (4,)),), model.ports.outputs)))
    model.check_fits(Property((), 4, 3, ports=Ports(inputs, (Port("Z", (1,)), Port("Y", (2, 1))))))
    model.check_fits(Property((), 4, 3))


def test_shapes_that_differ_in_more_than_axes_of_length_1_do_not_fit(tmp_path: Path) -> None:
    """X[i, j] of a declared [3, 2] would be another number of a network's [2, 3]."""
    nodes = [("Flatten", ["x"], ["f"], {}), ("Relu", ["f"], ["y"], {})]
    model = load_model(save_graph(tmp_path / "net.onnx", nodes, {"x": [1, 2, 3]}, {"y": [1, 6]}))
    for shape in ((1, 3, 2), (3, 2)):
        with pytest.raises(PropertyError, match="of the same shapes"):
            model.check_fits(Property((), 6, 6, ports=Ports((Port("X", shape),), (Port("Y", (6,)),))))
    for shape in ((1, 2, 3), (2, 3), (2, 1, 3, 1), (6,), (1, 6)):
        for outputs in ((6,), (2, 3), (3, 2)):
            model.check_fits(Property((), 6, 6, ports=Ports((Port("X", shape),), (Port("Y", outputs),))))


# ---- the command line


def read_assignment(text: str) -> dict[str, tuple[str, NDArray[np.float64]]]:
    """What VNN-LIB 2.0 says of an assignment: name, type and shape, then a line for each element."""
    lines, found = text.splitlines(), {}
    assert lines.pop(0) == "sat"
    while lines:
        name, kind, shape = lines.pop(0).split(" ")
        dims = json.loads(shape)
        values = [float(lines.pop(0)) for _ in range(int(np.prod(dims, dtype=int)))]
        found[name] = kind, np.reshape(values, dims)
    return found


def test_a_counterexample_names_each_tensor(tmp_path: Path) -> None:
    pytest.importorskip("vnnlib")
    path, prop, found = save_pair(tmp_path / "pair.onnx"), tmp_path / "p.vnnlib", tmp_path / "found"
    prop.write_text(PAIR_2 + "(assert (>= Sum[0] 13.9))(assert (>= Rest[0,1] 2.9))")
    ended = command("verify", path, prop, "--counterexample", found)
    assert (ended.returncode, ended.stdout) == (0, "sat\n")
    values = read_assignment(found.read_text())
    assert list(values) == ["First", "Second", "Sum", "Rest"] and {kind for kind, _ in values.values()} == {"float32"}
    first, second, total, rest = (value for _, value in values.values())
    assert (first.shape, second.shape, total.shape, rest.shape) == ((1, 2), (1, 2), (1,), (1, 2))
    a, b = first.astype(np.float32), second.astype(np.float32)
    z, y = run_by_name(path, {"a": a, "b": b}, ["z", "y"])
    np.testing.assert_array_equal([*total, *rest.reshape(-1)], [*z.reshape(-1), *y.reshape(-1)])
    assert total[0] >= 13.9 and rest[0, 1] >= 2.9


def test_assignments_of_scalars_and_of_reals() -> None:
    found = Counterexample(np.array([0.5, -1.0, 2.0]), np.array([1e-3], dtype=np.float32))
    declared = Ports((Port("A", (), "real"), Port("B", (1, 2), "float64")), (Port("Y", (), "real"),))
    text = vnncomp_text(Verdict(status="sat", counterexample=found), declared)
    small = repr(float(np.float32(1e-3)))
    assert text == f"sat\nA real []\n0.5\nB float64 [1,2]\n-1.0\n2.0\nY real []\n{small}\n"
    assert vnncomp_text(Verdict(status="unsat"), declared) == "unsat\n"


def test_inspect_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("vnnlib")
    path, prop = save_pair(tmp_path / "pair.onnx", batch="N"), tmp_path / "p.vnnlib"
    prop.write_text(PAIR_2 + "(assert (>= Sum[0] 14.5))")
    ended = command("inspect", path, prop)
    assert ended.returncode == 0, ended.stderr
    shown = [line.split(maxsplit=1) for line in ended.stdout.splitlines() if line]
    assert [text for label, text in shown if label in ("input", "output")] == [
        "N x 2  ('a')",
        "N x 2  ('b')",
        "N x 1  ('z')",
        "N x 2  ('y')",
    ]
    assert [text for label, text in shown if label == "declares"] == [
        "First float32 [1, 2], which is 'a'",
        "Second float32 [1, 2], which is 'b'",
        "Sum float32 [1], which is 'z'",
        "Rest float32 [1, 2], which is 'y'",
    ]


@pytest.mark.parametrize("more", [[], ["--proof-format", "aptp"]])
def test_proofs_are_refused_at_once(tmp_path: Path, more: list[str]) -> None:
    path, prop = save_pair(tmp_path / "pair.onnx"), tmp_path / "p.vnnlib"
    prop.write_text(PAIR_1 + "(assert (>= Y_0 14.5))")
    ended = command("verify", path, prop, "--proof", tmp_path / "p.aptp", *more)
    assert ended.returncode == 2 and ended.stdout == "" and not (tmp_path / "p.aptp").exists()
    assert "expected one of each" in ended.stderr and len(ended.stderr.splitlines()) == 1


# ---- robustness and images


def test_robustness_is_over_one_output(tmp_path: Path) -> None:
    model = load_model(save_pair(tmp_path / "pair.onnx"))
    with pytest.raises(UsageError, match=r"has the outputs 'z' of shape \[1, 1\], 'y' of shape \[1, 2\]; expected one"):
        verify(model, surebound.Robustness(np.full(4, 0.5), label=0, eps=Fraction(1, 10)), Options())


def test_data_sets_have_one_input(tmp_path: Path) -> None:
    from surebound.data import load_dataset

    nodes = [("Concat", ["a", "b"], ["x"], {"axis": 1}), ("MatMul", ["x", "w"], ["y"], {})]
    inputs: Shapes = {"a": [1, 32], "b": [1, 32]}
    path = save_graph(tmp_path / "net.onnx", nodes, inputs, {"y": [1, 10]}, w=np.zeros((64, 10)))
    with pytest.raises(NetworkError, match="has the inputs 'a' of shape"):
        check_fits(load_model(path), load_dataset("digits", None))


# ---- torch


class Pair(nn.Module):
    """Of an image and a vector, two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.scores = nn.Conv2d(1, 2, 2), nn.Linear(3, 4), nn.Linear(12, 2)

    def forward(self, image: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.relu(self.conv(image)).flatten(1)
        return self.scores(torch.cat([torch.relu(self.linear(said)), seen], 1)), seen


class Total(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(a - 2 * b).sum(1, keepdim=True)


class Nothing(nn.Module):
    def forward(self, a: Tensor) -> dict[str, Tensor]:
        return {"a": a}


def test_a_module_with_several_inputs_and_outputs(rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    module = Pair().eval()
    model = surebound.load(module, input_shape=[(1, 3, 3), (3,)])  # type: ignore[operator]
    assert model.ports.inputs == (Port("image", (1, 1, 3, 3)), Port("said", (1, 3)))
    assert [port.shape for port in model.ports.outputs] == [(1, 2), (1, 8)]
    x = rng.normal(size=(6, 12)).astype(np.float32)
    image, said = torch.from_numpy(x[:, :9]).reshape(6, 1, 3, 3), torch.from_numpy(x[:, 9:])
    expected = torch.cat(module(image, said), 1).detach().numpy()
    np.testing.assert_array_equal(model.replay(x), expected)
    np.testing.assert_allclose(forward(model, x), expected, rtol=1e-5, atol=1e-6)


def test_a_module_with_several_inputs_is_verified() -> None:
    model = surebound.load(Total(), input_shape=[(2,), (2,)])  # type: ignore[operator]
    box = surebound.Box(np.array([0.0, 0.0, 0.25, 0.5]), np.array([1.0, 1.0, 1.0, 1.0]))  # the largest sum is 0.5
    for constant, status in ((0.501, "unsat"), (0.499, "sat")):
        row = {"on_output": -np.ones((1, 1)), "constant": np.array([constant]), "strict": np.zeros(1, dtype=bool)}
        region = surebound.Region(box=box, **row)
        verdict = surebound.verify(model, Property((region,), 4, 1), timeout=60)  # type: ignore[operator]
        assert verdict.status == status


@pytest.mark.parametrize(
    ("module", "shape", "complaint"),
    [
        (Total(), (2,), "module Total has 2 inputs; expected one"),
        (nn.ReLU(), [(2,), (2,)], "has 1 inputs; expected 2, as input_shape has shapes"),
        (Nothing(), (2,), "returns no tensors"),
    ],
)
def test_modules_that_do_not_fit(module: nn.Module, shape: Any, complaint: str) -> None:
    with pytest.raises(NetworkError, match=complaint):
        load_torch(module, shape)
