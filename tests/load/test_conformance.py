"""Every operation that is read from ONNX or PyTorch, from its reading to bounds: against samples, exact values at the
ends of the box, differences for gradients, and onnxruntime."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curves import CONTEXT, EXACT, ROWS
from exact import exact_values
from onnx import TensorProto, helper
from onnx_models import X, run, save, save_op
from operations import CASES, floats, integers
from torch import Tensor, nn
from torch.nn import functional as F

from surebound.bounds import BOUNDS
from surebound.load.onnx import load_model, load_onnx
from surebound.load.torch import load_torch
from surebound.network import ACTIVATIONS
from surebound.network.activation import Activation
from surebound.network.graph import Network

METHODS = ("interval", "fastlin", "crown", "alpha-crown", "deepz")
EACH = [pytest.param(*case, id=f"{case[1]}-{number}") for number, case in enumerate(CASES)]
each = pytest.mark.parametrize(("opsets", "op", "shape", "inputs", "attributes"), EACH)


def _network(folder: Path, op: str, shape: Any, inputs: Any, opset: int, attributes: Any) -> Network:
    outputs = 2 if op == "Split" else 1
    path = save_op(folder / "op.onnx", op, shape, inputs, opset=opset, outputs=outputs, **attributes)
    return load_onnx(path)


def _apply(function: Activation, x: Fraction) -> Fraction:
    """f(x) to 60 digits; ValueError for a function that the table in `curves` has no row of."""
    name = next((name for name, row in ROWS.items() if row == function), None)
    if name is None:
        raise ValueError(function.name)
    sign, man, exp, _ = CONTEXT.mpf(EXACT[name](CONTEXT.mpf(x.numerator) / x.denominator))._mpf_
    return Fraction(-man if sign else man) * Fraction(2) ** exp


@each
def test_bounds_contain_samples_and_exact_values(
    tmp_path: Path, rng: np.random.Generator, opsets: Any, op: str, shape: Any, inputs: Any, attributes: Any
) -> None:
    network = _network(tmp_path, op, shape, inputs, opsets[-1], attributes)
    centre, radius = rng.normal(size=network.inputs), rng.choice([0.0, 0.1, 0.5], size=network.inputs)
    ends = [torch.from_numpy(end).reshape(1, *network.input_shape) for end in (centre - radius, centre + radius)]
    unit = np.concatenate(
        [rng.uniform(-1, 1, size=(300, network.inputs)), rng.choice([-1.0, 1.0], (100, network.inputs))]
    )
    y = network.forward(torch.from_numpy(centre + radius * unit).reshape(-1, *network.input_shape)).flatten(1)
    try:
        exact = [exact_values(network, end.numpy(), _apply)[network.output].reshape(-1) for end in ends]
    except ValueError:
        exact = []
    if op in ("Relu", "Sigmoid", "Conv", "ConvTranspose", "Resize", "MaxPool", "Where", "Sign"):
        assert exact  # so that it is not left out for all
    for method in METHODS:
        found = BOUNDS[method](network, *ends)
        low, high = found.lower[-1].flatten(), found.upper[-1].flatten()
        slack = 1e-12 * (1 + y.abs())  # of the samples themselves, which are computed in float64
        assert bool((y >= low - slack).all()) and bool((y <= high + slack).all()), method
        for values in exact:
            for a, value, b in zip(low.tolist(), values, high.tolist(), strict=True):
                assert Fraction(a) <= value <= Fraction(b), method


@each
def test_gradients_are_those_of_differences(
    tmp_path: Path, rng: np.random.Generator, opsets: Any, op: str, shape: Any, inputs: Any, attributes: Any
) -> None:
    """A backward pass through the network, as attacks make it, against what a small step changes."""
    network = _network(tmp_path, op, shape, inputs, opsets[-1], attributes)
    x = torch.from_numpy(rng.normal(size=(1, *network.input_shape)))
    row, step = torch.from_numpy(rng.normal(size=(1, *network.output_shape))), 1e-6
    direction = torch.from_numpy(rng.normal(size=x.shape))
    before: dict[int, Tensor] = {}

    def activate(k: int, v: Tensor) -> Tensor:
        before[k] = v
        return network.activate(k, v)

    network.trace(x, activate)
    gradient, _, _ = network.pull({network.output: row}, lambda k, c: c * network.slope(k, before[k]))
    ahead, behind = (float((row * network.forward(x + s * step * direction)).sum()) for s in (1, -1))
    found = (ahead - behind) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(found, rel=1e-4, abs=1e-4)


# ---- what depends on constants alone


CONSTANTS: dict[str, list[tuple[str, list[str], dict[str, Any]]]] = {
    "comparisons": [
        ("Greater", ["a", "b"], {}),
        ("Cast", ["0"], {"to": TensorProto.FLOAT}),
        ("LessOrEqual", ["a", "b"], {}),
        ("Cast", ["2"], {"to": TensorProto.FLOAT}),
        ("Sub", ["1", "3"], {}),
        ("Mul", ["4", X], {}),
    ],
    "equal": [("Equal", ["i", "j"], {}), ("Not", ["0"], {}), ("Where", ["1", X, "a"], {})],
    "less": [
        ("Less", ["a", "b"], {}),
        ("Greater", ["a", "zero"], {}),
        ("And", ["0", "1"], {}),
        ("Where", ["2", "b", X], {}),
    ],
    "or": [
        ("GreaterOrEqual", ["a", "b"], {}),
        ("Less", ["a", "zero"], {}),
        ("Xor", ["0", "1"], {}),
        ("Where", ["2", X, X], {}),
    ],
    "where of constants": [("Less", ["a", "b"], {}), ("Where", ["0", "a", "b"], {}), ("Add", ["1", X], {})],
    "cast to whole numbers": [
        ("Cast", ["a"], {"to": TensorProto.INT64}),
        ("Cast", ["0"], {"to": TensorProto.FLOAT}),
        ("Add", ["1", X], {}),
    ],
    "cast to conditions": [("Cast", ["i"], {"to": TensorProto.BOOL}), ("Where", ["0", X, "a"], {})],
    "cast of a shape": [
        ("Shape", [X], {}),
        ("Cast", ["0"], {"to": TensorProto.FLOAT}),
        ("ReduceSum", ["1"], {"keepdims": 0}),
        ("Mul", ["2", X], {}),
    ],
    "gather by a comparison": [
        ("Less", ["a", "zero"], {}),
        ("Cast", ["0"], {"to": TensorProto.INT64}),
        ("Gather", [X, "1"], {"axis": 1}),
    ],
}


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_compared_and_cast_as_onnxruntime_does(
    tmp_path: Path, rng: np.random.Generator, name: str, opset: int
) -> None:
    steps = CONSTANTS[name]
    nodes = [
        helper.make_node(op, reads, ["y" if i == len(steps) - 1 else str(i)], **more)
        for i, (op, reads, more) in enumerate(steps)
    ]
    constants = {
        "a": np.float32([-1.5, 0.25, 2.75, 0.0]),
        "b": np.float32([0.0, 0.25, 1.5, -3.0]),
        "i": integers(3, 0, 2, 0),
        "j": integers(3, 1, 2, 1),
        "zero": np.float32(0.0),
    }
    path = save(tmp_path / "net.onnx", nodes, [1, 4], constants=constants, opset=opset)
    model = load_model(path)
    for _ in range(3):
        x = rng.normal(size=(1, 4)).astype(np.float32)
        ours = model.network.forward(torch.from_numpy(x.astype(np.float64)).reshape(1, *model.network.input_shape))
        np.testing.assert_allclose(ours.numpy().reshape(-1), run(path, x).reshape(-1), rtol=1e-6)


# ---- PyTorch's readings


class _Of(nn.Module):
    """A function of torch's that has no module."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Any:
        return self.f(x)


def _function(name: str) -> Any:
    return getattr(torch, name, None) or getattr(F, name)


_TURNED = nn.ConvTranspose2d(2, 3, (3, 2), stride=2, padding=(1, 0), output_padding=(1, 0))
_WEIGHTS = [parameter.detach().numpy() for parameter in _TURNED.parameters()]
_MASK, _OTHER = torch.tensor([True, False, True, False]), torch.from_numpy(floats(4))
_IMAGE = (1, 2, 4, 3)
_EMPTY = np.zeros(0, dtype=np.float32)
_TWICE = [X, _EMPTY, np.float32([1, 1, 2, 2])]
PAIRS: dict[str, tuple[nn.Module, str, tuple[int, ...], list[Any], dict[str, Any]]] = {
    **{
        row.name: (_Of(_function(row.function)), row.onnx, (1, 9), [X], {})
        for row in ACTIVATIONS.values()
        if row.function and row.onnx
    },
    "relu": (nn.ReLU(), "Relu", (1, 9), [X], {}),
    "leaky relu": (nn.LeakyReLU(0.25), "LeakyRelu", (1, 9), [X], {"alpha": 0.25}),
    "softplus": (nn.Softplus(), "Softplus", (1, 9), [X], {}),
    "elu": (nn.ELU(1.5), "Elu", (1, 9), [X], {"alpha": 1.5}),
    "selu": (nn.SELU(), "Selu", (1, 9), [X], {}),
    "celu": (nn.CELU(0.5), "Celu", (1, 9), [X], {"alpha": 0.5}),
    "gelu": (nn.GELU(), "Gelu", (1, 9), [X], {}),
    "gelu by tanh": (nn.GELU("tanh"), "Gelu", (1, 9), [X], {"approximate": "tanh"}),
    "square": (_Of(lambda x: x * x), "Mul", (1, 9), [X, X], {}),
    "cube": (_Of(lambda x: x**3), "Pow", (1, 9), [X, np.float32(3)], {}),
    "abs": (_Of(torch.abs), "Abs", (1, 9), [X], {}),
    "where": (_Of(lambda x: torch.where(_MASK, x, _OTHER)), "Where", (1, 4), [_MASK.numpy(), X, _OTHER.numpy()], {}),
    "conv transpose": (
        _TURNED,
        "ConvTranspose",
        _IMAGE,
        [X, *_WEIGHTS],
        {"strides": [2, 2], "pads": [1, 0, 1, 0], "output_padding": [1, 0]},
    ),
    "nearest": (
        nn.Upsample(scale_factor=2),
        "Resize",
        _IMAGE,
        _TWICE,
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), "Resize", _IMAGE, _TWICE, {"mode": "linear"}),
    "corners": (
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        "Resize",
        _IMAGE,
        _TWICE,
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "max pool": (nn.MaxPool2d(2, 1), "MaxPool", _IMAGE, [X], {"kernel_shape": [2, 2]}),
    "average pool": (nn.AvgPool2d(2, 1), "AveragePool", _IMAGE, [X], {"kernel_shape": [2, 2]}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pytorch_is_read_as_onnxruntime_computes(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    module, op, shape, inputs, attributes = PAIRS[name]
    path = save_op(tmp_path / "op.onnx", op, shape, inputs, opset=20, **attributes)
    network = load_torch(module, shape[1:])
    for _ in range(3):
        x = rng.normal(size=shape).astype(np.float32)
        ours = network.forward(torch.from_numpy(x.astype(np.float64)))
        np.testing.assert_allclose(ours.numpy().reshape(-1), run(path, x).reshape(-1), rtol=2e-6, atol=2e-6)


def test_no_activation_is_left_out() -> None:
    """Rows of the table that a layer can have, by the names of torch's reading."""
    known = {row.name for row in ROWS.values()}
    read = set()
    for module, _, shape, *_ in PAIRS.values():
        network = load_torch(module, shape[1:])
        read |= {"relu" if function is None else function.name for function in network.functions}
    assert read >= known - {
        "silu"
    }  # ONNX has no operation for it before opset 24: `test_products_that_are_activations`
