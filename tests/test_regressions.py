"""Networks that once got a wrong `unsat`, each found by trying to break the verifier."""

from fractions import Fraction
from math import prod
from pathlib import Path

import numpy as np
import onnx_models
import pytest
import torch
from onnx import NodeProto, TensorProto, helper
from verifications import decide, region, without_onednn

import surebound
from surebound.bounds import BOUNDS
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.root import LayerBounding, fold_network
from surebound.load.onnx import load_onnx
from surebound.network.build import Builder
from surebound.problem import Box
from surebound.verify.confirm import Confirm
from surebound.verify.options import Options

pytestmark = pytest.mark.slow

FLOAT32_MAX = np.array(np.finfo(np.float32).max)


def write_property(path: Path, *, lower: float, upper: float, at_most: float) -> Path:
    """Violated where Y_0 <= at_most for some X_0 in [lower, upper]."""
    path.write_text(
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n"
        f"(assert (>= X_0 {lower}))\n(assert (<= X_0 {upper}))\n(assert (<= Y_0 {at_most}))\n"
    )
    return path


@pytest.mark.parametrize(("bound", "sign"), [("hi", 1.0), ("lo", -1.0)])
def test_a_clip_at_the_end_of_float32_is_a_bound(tmp_path: Path, bound: str, sign: float) -> None:
    """y = 1e-38 clip(1e37 x) is about ±3.4 on [100, 200], where without the clip it would be ±10 and more."""
    inputs = ["a", "", "end"] if bound == "hi" else ["a", "end"]
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["a"]),
        helper.make_node("Clip", inputs, ["b"]),
        helper.make_node("Mul", ["b", "r"], ["y"]),
    ]
    constants = {"k": np.float32([[sign * 1e37]]), "end": sign * FLOAT32_MAX, "r": np.float32([[sign * 1e-38]])}
    path = onnx_models.save(tmp_path / "clip.onnx", nodes, (1, 1), constants=constants, output_shape=(1, 1))
    assert abs(float(onnx_models.run(path, np.float32([[150.0]])).reshape(())) - 3.4028235) < 1e-5
    holds = write_property(tmp_path / "holds.vnnlib", lower=100, upper=200, at_most=3.0)
    fails = write_property(tmp_path / "fails.vnnlib", lower=100, upper=200, at_most=5.0)
    for branching in ("auto", "upb", "input"):
        assert surebound.verify(path, holds, branching=branching, timeout=20).status != "sat"
        assert surebound.verify(path, fails, branching=branching, timeout=20).status != "unsat"


def test_an_idle_clip_at_the_end_of_float32_costs_nothing(tmp_path: Path) -> None:
    """Many files spell an absent bound so: what it is added to must not drown in its rounding."""
    nodes = [helper.make_node("Clip", ["x", "lo", "hi"], ["y"])]
    constants = {"lo": -FLOAT32_MAX, "hi": FLOAT32_MAX}
    path = onnx_models.save(tmp_path / "idle.onnx", nodes, (1, 1), constants=constants, output_shape=(1, 1))
    holds = write_property(tmp_path / "holds.vnnlib", lower=0, upper=1, at_most=-1e-6)
    fails = write_property(tmp_path / "fails.vnnlib", lower=0, upper=1, at_most=1e-6)
    assert surebound.verify(path, holds, timeout=20).status == "unsat"
    assert surebound.verify(path, fails, timeout=20).status == "sat"


def two_relus_on_one_tensor(path: Path, delta: float) -> Path:
    """1 input, 4 neurons, 400 neurons read by two ReLUs, a skip; y(3.03125) = −2.1875.

    With delta near 4e-12 the first neuron's lower bound is so close to 0 that its sign depends on how it is rounded.
    """
    width = 400
    w1, b1 = np.float32([[1], [1], [0], [0]]), np.float32([11, 11, 1, 1])
    w, b = np.zeros((width, 4), np.float32), np.full(width, 5, np.float32)
    w[:, 0], w[:, 1] = 1, -1
    w[0], b[0] = [2, -1, -1, delta], 0
    for i, threshold in enumerate((13, 13.03125, 13.0625)):
        w[1 + i], b[1 + i] = [2, -1, -1, 0], -threshold
    o1, o2 = np.zeros((1, width), np.float32), np.zeros((1, width), np.float32)
    o1[0, :4], o2[0, 10] = [4096, -256, 512, -256], 1
    skip = np.float32([[-4096 + 0.0625, 0, 4096 - 0.0625, 0]])
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("Gemm", ["h", "w", "b"], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["r1"]),
        helper.make_node("Relu", ["z"], ["r2"]),
        helper.make_node("Gemm", ["r1", "o1"], ["y1"], transB=1),
        helper.make_node("Gemm", ["r2", "o2"], ["y2"], transB=1),
        helper.make_node("Gemm", ["h", "skip"], ["y3"], transB=1),
        helper.make_node("Add", ["y1", "y2"], ["s"]),
        helper.make_node("Add", ["s", "y3"], ["y"]),
    ]
    constants = {"w1": w1, "b1": b1, "w": w, "b": b, "o1": o1, "o2": o2, "skip": skip}
    return onnx_models.save(path, nodes, (1, 1), constants=constants, output_shape=(1, 1))


def test_two_relus_on_one_tensor_are_not_counted_twice(tmp_path: Path) -> None:
    """Whatever a second look at the shared pre-activation finds, a neuron is relaxed or passed on, never both."""
    for delta in np.geomspace(1e-12, 1e-11, 60):
        path = two_relus_on_one_tensor(tmp_path / "dup.onnx", float(delta))
        network = load_onnx(path, check=False)
        ends = torch.tensor([[-10.0]]).double(), torch.tensor([[10.0]]).double()
        form = fold_network(Enclosure(network, *ends), LayerBounding(ascent=None), lambda: None)
        assert form is not None
        for block in form.blocks:
            assert not block.active[block.index].any()
    path = two_relus_on_one_tensor(tmp_path / "dup.onnx", 4e-12)
    assert float(onnx_models.run(path, np.float32([[3.03125]])).reshape(())) == -2.1875
    fails = write_property(tmp_path / "fails.vnnlib", lower=-10, upper=10, at_most=0)
    for branching in ("auto", "upb", "fsb", "sr", "input"):
        assert surebound.verify(path, fails, branching=branching, timeout=20).status == "sat"


def test_inputs_beyond_all_measure_prove_nothing(tmp_path: Path) -> None:
    """Every point is a counterexample, by a coefficient that underflows when rows are mixed."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["first"]),
        helper.make_node("Relu", ["first"], ["y"]),
    ]
    constants = {"start": np.array([0]), "end": np.array([1]), "axis": np.array([1])}
    path = onnx_models.save(tmp_path / "pick.onnx", nodes, (1, 2), constants=constants, output_shape=(1, 1))
    box = surebound.Box(np.array([-1.0, 1e308]), np.array([1.0, 1.01e308]))
    region = surebound.Region(
        box=box,
        on_output=np.array([[1e-20], [2e-20]]),
        on_input=np.array([[0.0, -5e-324], [0.0, -5e-324]]),
        constant=np.array([1e-16, 1e-16]),
        strict=np.zeros(2, dtype=bool),
    )
    for branching in ("auto", "upb", "fsb", "sr", "input"):
        verdict = surebound.verify(path, surebound.Property((region,), 2, 1), branching=branching, timeout=5)
        assert verdict.status != "unsat"


def test_a_float64_network_is_replayed_in_float64(tmp_path: Path) -> None:
    """y = x + 1e-12 on [1, 2] stays above 1, which float32 cannot tell."""
    nodes = [helper.make_node("Add", ["x", "c"], ["y"])]
    path = onnx_models.save(
        tmp_path / "double.onnx",
        nodes,
        (1, 1),
        constants={"c": np.array([[1e-12]])},
        output_shape=(1, 1),
        dtype=TensorProto.DOUBLE,
    )
    above = write_property(tmp_path / "above.vnnlib", lower=1, upper=2, at_most=1.0)
    assert surebound.verify(path, above, timeout=5).status == "unsat"


def test_a_counterexample_repeats_decimals_that_float64_cannot_hold(tmp_path: Path) -> None:
    """An input fixed to a decimal must be that decimal in the answer, though no float32 and no float64 is."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    constants = {"w": np.float32([[1, 1]])}
    path = onnx_models.save(tmp_path / "sum.onnx", nodes, (1, 2), constants=constants, output_shape=(1, 1))
    fixed = "0.21771757800849847"
    problem = tmp_path / "fixed.vnnlib"
    problem.write_text(
        "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"
        f"(assert (>= X_0 {fixed}))\n(assert (<= X_0 {fixed}))\n"
        "(assert (>= X_1 0.0))\n(assert (<= X_1 1.0))\n(assert (>= Y_0 0.5))\n"
    )
    verdict = surebound.verify(path, problem, timeout=20)
    assert verdict.status == "sat"
    assert verdict.counterexample is not None
    assert repr(float(verdict.counterexample.x[0])) == fixed


@pytest.mark.parametrize("branching", ["auto", "upb", "input"])
def test_the_last_bit_of_a_denormal_is_paid_for(tmp_path: Path, branching: str) -> None:
    """2⁻³⁶⁵ x − 2⁶⁶⁴ relu(x) + 1.3 · 2⁻³⁶⁵ ≤ 0 at x = −1.3. The line above relu on [−1.3, 5e-324] has to underflow."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = onnx_models.save(tmp_path / "relu.onnx", nodes, (1, 1), output_shape=(1, 1))
    region = surebound.Region(
        box=surebound.Box(np.array([-1.3]), np.array([5e-324])),
        on_output=np.array([[-(2.0**664)]]),
        on_input=np.array([[2.0**-365]]),
        constant=np.array([1.3 * 2.0**-365]),
        strict=np.zeros(1, dtype=bool),
    )
    verdict = surebound.verify(path, surebound.Property((region,), 1, 1), branching=branching, timeout=0.5)
    assert verdict.status != "unsat"


def test_an_error_that_underflows_proves_nothing(tmp_path: Path) -> None:
    """Y_0 − 2⁻⁵⁴ (Y_1 + …), times 2⁶⁶⁴, for outputs that are 4,097 copies of an input from 2⁻¹⁰³⁵ on."""
    count, low = 4097, 2.0**-1035
    nodes = [helper.make_node("Concat", ["x"] * count, ["y"], axis=1)]
    path = onnx_models.save(tmp_path / "copies.onnx", nodes, (1, 1), output_shape=(1, count))
    row = np.full((1, count), -(2.0**610))
    row[0, 0] = 2.0**664
    region = surebound.Region(
        box=surebound.Box(np.array([low]), np.array([1.125 * low])),
        on_output=row,
        constant=np.array([-(2.0**-371) * (1 - (count - 1) * 2.0**-54)]),
        strict=np.zeros(1, dtype=bool),
    )
    verdict = surebound.verify(path, surebound.Property((region,), 1, count), timeout=5)
    assert verdict.status != "unsat"


def test_shifts_that_nearly_cancel_make_no_silu(tmp_path: Path) -> None:
    """x (σ(x) + 10¹⁰ + 9 · 10⁻⁷ − 10¹⁰) is above 100.00008 at 100, where a SiLU is 100."""
    shifts = {"a": 1e10, "b": 9e-7, "c": -1e10}
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"])]
    nodes += [
        helper.make_node("Add", [left, name], [f"s{name}"])
        for left, name in zip(("s", "sa", "sb"), shifts, strict=True)
    ]
    nodes.append(helper.make_node("Mul", ["x", "sc"], ["y"]))
    _check_not_proved_above(tmp_path, nodes, shifts, box=(99.0, 100.0), threshold=100.00008)


def test_scales_below_the_normal_range_make_no_silu(tmp_path: Path) -> None:
    """10⁻¹⁶² x · 10⁻¹⁶⁰ σ(10⁻³⁰ x), times 10²⁹⁶, is 10⁷³ at 10⁹⁹; 10⁻³²² is less by a hundredth in float64."""
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["f"]),
        helper.make_node("Mul", ["x", "r"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["s"]),
        helper.make_node("Mul", ["s", "b"], ["g"]),
        helper.make_node("Mul", ["f", "g"], ["z0"]),
    ]
    constants = {"a": 1e-162, "b": 1e-160, "r": 1e-30, "up": 1e37}
    _check_not_proved_above(tmp_path, [*nodes, *_UP], constants, box=(1e98, 1e99), threshold=9.95e72)


def test_a_batch_norm_whose_scale_underflows_is_not_zero(tmp_path: Path) -> None:
    """x · 2⁻¹⁰⁷⁴ / 3, times 10²⁹⁶, is 10⁷¹ at 10⁹⁹, though float64 has 0 for the scale."""
    nodes = [helper.make_node("BatchNormalization", ["x", "gamma", "zero", "zero", "variance"], ["z0"], epsilon=0.0)]
    constants = {"gamma": 5e-324, "zero": 0.0, "variance": 9.0, "up": 1e37}
    _check_not_proved_above(tmp_path, [*nodes, *_UP], constants, box=(1e98, 1e99), threshold=1e70)


_UP = [helper.make_node("Mul", [f"z{i}", "up"], ["y" if i == 7 else f"z{i + 1}"]) for i in range(8)]


def _check_not_proved_above(
    tmp_path: Path,
    nodes: list[NodeProto],
    constants: dict[str, float],
    *,
    box: tuple[float, float],
    threshold: float,
) -> None:
    """A network of float64, of which y ≥ threshold holds somewhere in the box, is refused or not proved."""
    path = onnx_models.save(
        tmp_path / "network.onnx",
        nodes,
        (1, 1),
        constants={name: np.array([c]) for name, c in constants.items()},
        output_shape=(1, 1),
        dtype=TensorProto.DOUBLE,
    )
    region = surebound.Region(
        box=surebound.Box(*(np.array([end]) for end in box)),
        on_output=np.array([[-1.0]]),
        constant=np.array([threshold]),
        strict=np.zeros(1, dtype=bool),
    )
    try:
        verdict = surebound.verify(path, surebound.Property((region,), 1, 1), timeout=5)
    except surebound.errors.NetworkError:
        return
    assert verdict.status != "unsat"


def test_a_transform_does_not_mix_large_with_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without oneDNN, torch convolved sixteen symbols by NNPACK's transform: 2³⁰ a few pixels away came out as −7.5 per
    symbol, beside 8.5 of a pixel's own, and a neuron that reaches 36 counted as inactive."""
    build = Builder((16,))
    image = np.zeros((256, 16))
    image[68], image[34] = 2.0**30, 8.5
    kernel = np.zeros((1, 1, 3, 3), np.float32)
    kernel[0, 0, 0, 1], kernel[0, 0, 1, 1], kernel[0, 0, 2, 0] = 0.3, 1.0, -0.7
    node = build.conv(build.reshape(build.linear(0, image), (1, 16, 16)), kernel, pads=[(1, 1), (1, 1)])
    node = build.relu(build.shift(build.reshape(node, (256,)), np.full(256, -100.0)))
    network = build.build(build.pick(node, np.array([34])))
    ends, options = np.ones(16), Options(quick_attack=None, timeout=1.0)
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    with without_onednn():
        verdict = decide(network, region(Box(-ends, ends), np.array([-1.0]), 1.0), branching="input", options=options)
    assert verdict.status != "unsat"


def far_up_and_back(path: Path) -> tuple[Path, float, float]:
    """y = gain · [x − 5]₊ by way of 1e135; with the least and the greatest y for x in [6, 7]."""
    weights = [np.float32(w) for w in (1e35, 1e35, 1e29, 1e36, *[1e-37] * 8, 1e-30)]
    names = [f"w{i}" for i in range(len(weights))]
    nodes = [helper.make_node("Sub", ["x", "five"], ["s"]), helper.make_node("Relu", ["s"], ["t0"])]
    for i, name in enumerate(names):
        out = "y" if name == names[-1] else "up" if i == 3 else f"t{i + 1}"
        nodes.append(helper.make_node("MatMul", [f"t{i}", name], [out]))
        if i == 3:
            nodes.append(helper.make_node("Relu", ["up"], ["t4"]))
    constants = {"five": np.float32([[5]]), **{n: w.reshape(1, 1) for n, w in zip(names, weights, strict=True)}}
    onnx_models.save(path, nodes, (1, 1), constants=constants, output_shape=(1, 1))
    gain = prod(Fraction(float(w)) for w in weights)
    return path, float(gain), float(2 * gain)


def test_numbers_that_come_back_from_beyond_all_measure(tmp_path: Path) -> None:
    """Above 1e100 in between: what a coefficient loses by underflow there, 1e135 times as much, is not paid for."""
    path, least, most = far_up_and_back(tmp_path / "far.onnx")
    assert 9e-192 < least < most < 3e-191
    prop = tmp_path / "p.vnnlib"
    prop.write_text(
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n"
        f"(assert (>= X_0 6))\n(assert (<= X_0 7))\n(assert (>= Y_0 {least / 1000:e}))\n"
    )
    for branching in ("auto", "input", "upb", "fsb"):
        assert surebound.verify(path, prop, branching=branching, timeout=2).status != "unsat"
    for method in set(BOUNDS) - {"milp"}:  # which is exact up to a tolerance
        found = surebound.bounds(path, (np.array([6.0]), np.array([7.0])), method=method)
        assert found.lower[-1].item() <= least and found.upper[-1].item() >= most, method
