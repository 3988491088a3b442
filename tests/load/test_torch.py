"""torch modules, functions and methods, each against the module itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.onnx import load_onnx
from surebound.load.replay import replay
from surebound.load.torch import load_torch, replay_module
from surebound.load.torch_calls import CALLS
from surebound.load.torch_modules import MODULES
from surebound.load.torch_ops import FUNCTIONS, METHODS, MOVES
from surebound.load.torch_trace import trace
from surebound.network import ACTIVATIONS
from surebound.network.graph import Network
from surebound.train.export import export_onnx

_IMAGE = (2, 6, 5)


def _norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """A batch norm with statistics, scales and shifts that are not the identity."""
    generator = torch.Generator().manual_seed(1)
    for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
        if tensor is not None:
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module


MODULE_CASES: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(5, 3), (5,)),
    (nn.Linear(5, 3, bias=False), (4, 5)),
    (nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0)), _IMAGE),
    (nn.Conv2d(2, 4, (2, 3), dilation=(2, 1), groups=2, bias=False), _IMAGE),
    (nn.Conv2d(2, 3, (2, 3), padding="same"), _IMAGE),
    (nn.Conv2d(2, 3, 2, padding="valid"), _IMAGE),
    (nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 9)),
    (_norm(nn.BatchNorm1d(5)), (5,)),
    (_norm(nn.BatchNorm1d(2)), (2, 7)),
    (_norm(nn.BatchNorm2d(2, eps=0.1)), _IMAGE),
    (_norm(nn.BatchNorm2d(2, affine=False)), _IMAGE),
    (nn.ReLU(), (5,)),
    (nn.ReLU(inplace=True), (5,)),
    (nn.LeakyReLU(0.2), (5,)),
    (nn.PReLU(2, init=0.1), _IMAGE),
    (nn.PReLU(), (5,)),
    (nn.PReLU(5), (5,)),
    (nn.PReLU(2), (2, 7)),
    (nn.Hardtanh(-0.5, 0.3), (5,)),
    (nn.ReLU6(), (5,)),
    (nn.MaxPool2d(2), _IMAGE),
    (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), _IMAGE),
    (nn.MaxPool2d((2, 1), stride=1, dilation=(3, 1)), _IMAGE),
    (nn.MaxPool1d(3, padding=1), (2, 7)),
    (nn.AvgPool2d(2, padding=1), _IMAGE),
    (nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), _IMAGE),
    (nn.AvgPool1d(3), (2, 7)),
    (nn.AdaptiveAvgPool2d(1), _IMAGE),
    (nn.AdaptiveAvgPool2d((None, 5)), _IMAGE),
    (nn.AdaptiveAvgPool1d(1), (2, 7)),
    (nn.AdaptiveMaxPool2d((1, 1)), _IMAGE),
    (nn.AdaptiveMaxPool1d(1), (2, 7)),
    (nn.Flatten(), _IMAGE),
    (nn.Flatten(2), _IMAGE),
    (nn.Unflatten(1, (2, 3)), (6,)),
    (nn.Identity(), (5,)),
    (nn.Dropout(0.4), (5,)),
    (nn.Dropout1d(0.4), (2, 5)),
    (nn.Dropout2d(0.4), _IMAGE),
    (nn.ZeroPad2d((1, 0, 2, 1)), _IMAGE),
    (nn.ZeroPad1d(2), (2, 5)),
    (nn.ConstantPad2d((1, 0, 2, 1), 0.5), _IMAGE),
    (nn.ConstantPad1d((1, 2), -1.5), (2, 5)),
    *((getattr(nn, row.module)(), (5,)) for row in ACTIVATIONS.values() if row.module),
    (nn.GELU(), (5,)),
    (nn.GELU("tanh"), (5,)),
    (nn.ELU(0.7), (5,)),
    (nn.SELU(), (5,)),
    (nn.CELU(1.4), (5,)),
    (nn.Softplus(), (5,)),
    (nn.Softplus(beta=2.5), (5,)),
    (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), _IMAGE),
    (nn.ConvTranspose2d(2, 4, (2, 3), groups=2, dilation=2, bias=False), _IMAGE),
    (nn.ConvTranspose1d(2, 3, 4, stride=2), (2, 7)),
    (nn.Upsample(scale_factor=2), _IMAGE),
    (nn.Upsample(size=(9, 7)), _IMAGE),
    (nn.Upsample(scale_factor=(2, 1.7), mode="bilinear"), _IMAGE),
    (nn.Upsample(size=11, mode="linear", align_corners=True), (2, 7)),
]

# what neither our own tables nor torch's exporter can write is not among them
WRITTEN = [case for case in MODULE_CASES if str(case[0]) != "AdaptiveAvgPool2d(output_size=(None, 5))"]

_W = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
_C = torch.randn(5, generator=torch.Generator().manual_seed(3))

FUNCTION_CASES: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "relu": (lambda x: F.relu(x) + torch.relu(x - 0.5) + (x + 0.5).relu(), (5,)),
    "relu_": (lambda x: (x * 1).relu_(), (5,)),
    "arithmetic": (lambda x: 2 * x - 1 + (3 - x) / 4 - (-x), (5,)),
    "with tensors": (lambda x: (x + _C) * _C - _C / 1.5 + (_C - x), (5,)),
    "functions": (lambda x: torch.add(x, _C, alpha=2) - torch.sub(x, _C).mul(0.5).div(3).neg(), (5,)),
    "alpha": (lambda x: torch.sub(x, torch.relu(x), alpha=3), (5,)),
    "broadcast": (lambda x: x + x[:, :1] - x.mean(dim=1, keepdim=True), (5,)),
    "linear": (lambda x: F.linear(x, _W) + torch.matmul(x, _W.T) + x @ _W.t(), (5,)),
    "matmul left": (lambda x: torch.matmul(_W, x), (5, 2)),
    "conv": (lambda x: F.conv2d(x, torch.ones(3, 2, 2, 2), stride=2, padding=1), _IMAGE),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(1, 2, 3), torch.ones(1), dilation=2), (2, 9)),
    "pools": (lambda x: F.max_pool2d(x, 2) - F.avg_pool2d(x, 2, padding=0), _IMAGE),
    "pools 1d": (lambda x: F.max_pool1d(x, 3, stride=2) + F.avg_pool1d(x, 3, stride=2), (2, 9)),
    "global pools": (lambda x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (1, 1)), _IMAGE),
    "batch norm": (lambda x: F.batch_norm(x, _C, _C.abs(), _C, None, eps=0.01), (5,)),
    "leaky": (lambda x: F.leaky_relu(x, 0.3) + F.leaky_relu(x), (5,)),
    "clips": (lambda x: x.clamp(-0.5, 0.5) + torch.clamp(x, min=0.1) + x.clip(max=0.3) + F.relu6(x), (5,)),
    "hardtanh": (lambda x: F.hardtanh(x) + F.hardtanh(x, -2, 0.1), (5,)),
    "clamp by tensors": (lambda x: torch.clamp(x, min=_C, max=_C + 1), (5,)),
    "maximum": (lambda x: torch.maximum(x, _C) - torch.minimum(x, -x) + torch.max(x, 2 * x), (5,)),
    "extremes": (lambda x: x.amax(dim=1) - torch.amin(x, (1, 2), keepdim=False).unsqueeze(1), (3, 4)),
    "curves": (lambda x: torch.sigmoid(x) + x.tanh() - F.silu(x) + F.gelu(x) + F.elu(x) + torch.erf(x), (5,)),
    "a sign of zeros": (lambda x: torch.sign(F.relu(x)), (5,)),
    "more curves": (lambda x: F.softplus(x) - F.gelu(x, approximate="tanh") + F.selu(x) + F.celu(x, 2.0), (5,)),
    "swish": (lambda x: x * torch.sigmoid(x) + x * torch.sigmoid(1.7 * x), (5,)),
    "powers": (lambda x: x * x - x**2 + x.pow(3) * 0.5 + torch.pow(x, 2), (5,)),
    "sign": (lambda x: torch.sign(x) + x.sign(), (5,)),
    "where": (lambda x: torch.where(_C > 0, x, 2 * x) + torch.where(_C > 0, _C, x), (5,)),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(12, 10), mode="bilinear"),
        _IMAGE,
    ),
    "conv transpose": (lambda x: F.conv_transpose2d(x, torch.ones(2, 3, 2, 2), stride=2), _IMAGE),
    "abs": (lambda x: x.abs() + torch.abs(x), (5,)),
    "cat": (lambda x: torch.cat([x, x * 0 + _C, 2 * x], dim=1), (5,)),
    "cat last": (lambda x: torch.cat((x, x + 1), -1), (3, 2)),
    "stack": (lambda x: torch.stack([x, x + 1], dim=-1), (3,)),
    "flatten": (lambda x: torch.flatten(x, 1) + x.flatten(start_dim=1) + x.view(x.size(0), -1), _IMAGE),
    "reshape": (lambda x: x.reshape(x.shape[0], 5, -1) + torch.reshape(x, (-1, 5, 12)), _IMAGE),
    "permute": (lambda x: x.permute(0, 2, 3, 1) + x.transpose(1, 2).transpose(2, 3).contiguous(), _IMAGE),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1) + torch.unsqueeze(x, -1).squeeze(-1), (5,)),
    "mean": (lambda x: x.mean((2, 3)) + torch.mean(x, dim=[2, 3]) + x.sum(dim=-1).sum(2), _IMAGE),
    "slices": (lambda x: x[:, 1:, ..., ::2] + x[:, :1, :, 1::2], (2, 4, 4)),
    "index": (lambda x: x[:, 1, [0, 2]] + x[:, 0, -2:], (2, 4)),
    "chunk": (lambda x: x.chunk(2, dim=1)[0] - torch.split(x, 3, dim=1)[1], (6,)),
    "pad": (lambda x: F.pad(x, (1, 2), value=0.5) + F.pad(x, [1, 2]), (2, 5)),
    "pad deeper": (lambda x: F.pad(x, (1, 0, 0, 2), "constant", -1.0), _IMAGE),
    "by other names": (
        lambda x: torch.concat([torch.rsub(x, 1), x.multiply(_C).subtract(_C).true_divide(3), torch.mm(x, _W.T)], 1),
        (5,),
    ),
    "along an axis": (
        lambda x: (
            torch.max(x, 1)[0] + x.min(dim=1).values + x.max(-2, keepdim=True)[0][:, 0] - torch.min(x, 1, True)[0][:, 0]
        ),
        (3, 4),
    ),
    "one-sided clips": (lambda x: x.clamp_min(-0.2) + torch.clamp_max(x, 0.3) + x.clamp_min(_C), (5,)),
    "by alpha": (lambda x: torch.rsub(x, _C, alpha=2) + x.square(), (5,)),
    "to": (lambda x: x.to(torch.float64).to(_C) + x.to("cpu", torch.float32), (5,)),
    "more moves": (
        lambda x: x.roll(1, 2) + torch.tile(x, (2, 1))[:, :3].swapdims(1, 2).moveaxis(2, 1) + x.tensor_split(1, 1)[0],
        (3, 4),
    ),
    "diagonals": (lambda x: x.diagonal(dim1=1, dim2=2).repeat_interleave(2, 1), (3, 4)),
    "back from pixels": (lambda x: F.pixel_unshuffle(x, 2), (2, 4, 6)),
    "minimum of two": (lambda x: torch.min(x.double().float(), _C), (5,)),
    "parts": (lambda x: x.narrow(1, 1, 3) + x.index_select(1, torch.tensor([0, 2, 4])) + x.unbind(1)[3][:, None], (5,)),
    "axes": (
        lambda x: x.unflatten(1, (2, 3)).swapaxes(1, 2).select(2, 1) + x.flatten(0).t().unflatten(0, (-1, 6))[:, :3],
        (6,),
    ),
    "pixels": (lambda x: F.pixel_shuffle(x, 2), (4, 2, 3)),
    "flip": (lambda x: x.flip(1) + torch.movedim(x, 2, 1).movedim(1, 2), (3, 4)),
    "repeat": (lambda x: x.repeat(1, 2) + x.expand(-1, 5).repeat(1, 2), (5,)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), (5,)),
    "float": (lambda x: x.float().detach().clone() * x.dim() + x.ndim, (5,)),
}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Any:
        """f(x)."""
        return self.f(x)


def _agree(network: Network, module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = module.eval()(x.clone())
    ours = network.forward(x.double().reshape(4, *network.input_shape))
    torch.testing.assert_close(ours.reshape(expected.shape), expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("module", "shape"), MODULE_CASES, ids=[str(m) for m, _ in MODULE_CASES])
def test_modules(module: nn.Module, shape: tuple[int, ...]) -> None:
    _agree(load_torch(module, shape), module, shape)


def test_every_supported_module_is_tested_here() -> None:
    assert {type(m) for m, _ in MODULE_CASES} == set(MODULES)


@pytest.mark.parametrize(("module", "shape"), WRITTEN, ids=[str(m) for m, _ in WRITTEN])
def test_modules_are_written_and_read_as_onnxruntime_computes(
    module: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """The reading of the module, that of its file, and onnxruntime on that file."""
    path, x = tmp_path / "model.onnx", torch.randn(4, *shape, generator=torch.Generator().manual_seed(7))
    export_onnx(nn.Sequential(module, nn.Flatten(), nn.ReLU()), shape, path)
    expected = replay(path)(x.flatten(1).numpy())
    for network in (load_torch(nn.Sequential(module, nn.Flatten(), nn.ReLU()), shape), load_onnx(path)):
        ours = network.forward(x.double().reshape(4, *network.input_shape))
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_every_supported_function_is_tested_here() -> None:
    """Each is called by one of the functions or modules above, or by `Block`."""
    modules = [*(Function(f) for f, _ in FUNCTION_CASES.values()), Block()]
    nodes = [node for module in modules for node in trace(module).graph.nodes]
    called = {str(getattr(node.target, "__name__", node.target)).rstrip("_") for node in nodes}
    called |= {CALLS[type(m)][0] for m, _ in MODULE_CASES if type(m) in CALLS}
    assert called >= {*FUNCTIONS, *METHODS, *MOVES}


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_functions(name: str) -> None:
    f, shape = FUNCTION_CASES[name]
    _agree(load_torch(Function(f), shape), Function(f), shape)


class Block(nn.Module):
    """A residual block with a buffer, a parameter and in-place operators."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = _norm(nn.BatchNorm2d(3))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """# (batch, 3, height, width)"""
        y = (x - self.mean) / 0.25
        y = F.relu(self.norm(self.conv(y)))
        y *= self.gain
        y += x
        y -= 0.5
        y /= 3
        return y


def test_a_residual_network_is_read_without_being_changed() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Block(), nn.MaxPool2d(2), Block(), nn.Flatten(), nn.Dropout(), nn.Linear(27, 4)).train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    network = load_torch(module, (3, 6, 6))
    assert module.training and all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    _agree(network, module, (3, 6, 6))
    weight = network.nodes[network.output].op.weight
    assert weight.dtype == torch.float64 and torch.equal(weight, module[-1].weight.detach().double())


def test_replay_of_a_module_is_its_float32_forward_pass() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Dropout())
    x = np.random.default_rng(0).normal(size=(600, 6)).astype(np.float32)
    expected = module.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(replay_module(module.train(), (2, 3))(x), expected, rtol=1e-5, atol=1e-6)


def test_a_module_and_its_onnx_export_are_the_same_network(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx_models import X, save_op

    from surebound.load.onnx import load_onnx

    path = save_op(tmp_path / "leaky.onnx", "LeakyRelu", (1, 5), [X], opset=13, alpha=0.1)
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = load_torch(nn.Sequential(nn.LeakyReLU(0.1)), (5,)).forward(x)
    assert torch.equal(ours, load_onnx(path).forward(x))


class Reads(nn.Module):
    """Two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Mish()), r"node '_1' \(Mish\).*ReLU"),
        (nn.Sequential(nn.Softplus(threshold=2)), "threshold"),
        (nn.Sequential(nn.Softplus(beta=1e-3)), "threshold"),  # where log(1 + e^20) - 20 is divided by beta
        (nn.Sequential(nn.Conv2d(1, 1, 1, padding_mode="reflect", padding=0)), "reflect"),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "statistics"),
        (nn.Sequential(nn.MaxPool1d(2, return_indices=True)), "indices"),
        (nn.Sequential(nn.AdaptiveAvgPool1d(2)), "adaptive"),
        (nn.Sequential(nn.AvgPool2d(1, divisor_override=3)), "divisor"),
        (Function(torch.sin), "sin"),
        (Function(lambda x: x.exp()), "exp"),
        (Function(lambda x: x * (x + 1)), "constant factor"),
        (Function(lambda x: 1 / x), "divisor"),
        (Function(lambda x: x.max(1)[0] * x.max(1)[1]), "computes with None"),
        (Function(lambda x: F.pad(x, (1, 1), "circular")), "circular"),
        (Function(lambda x: torch.div(x, 2, rounding_mode="floor")), "rounds"),
        (Function(lambda x: F.dropout(x, 0.5, training=True)), "training"),
        (Function(lambda x: x.T), "attribute 'T'"),
        (Function(lambda x: x.to(torch.float16)), "another type"),
        (Function(lambda x: x.to(dtype=torch.int64)), "another type"),
        (Function(lambda x: x.clamp(min=x - 1)), "bound"),
        (Function(lambda x: x[:, x[0].shape[0] :]), "at least one element"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(module: nn.Module, complaint: str) -> None:
    expected = NetworkError if "element" in complaint else UnsupportedOpError
    with pytest.raises(expected, match=complaint):
        load_torch(module, (2, 4, 4) if "Pool2d" in str(module) else (1, 2, 4) if "Conv2d" in str(module) else (1, 4))


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Reads(), "2 inputs"),
        (Function(lambda x: -x if x.sum() > 0 else x), "traced"),
        (Function(lambda x: (x, 3.0)), "no tensors"),
        (Function(lambda x: 3.0), "no tensors"),
        (nn.Sequential(nn.Linear(3, 2)), r"\(Linear\).*cannot multiply"),
        (nn.Sequential(nn.Flatten(), nn.Conv2d(1, 1, 1)), "Conv2d"),
        (Function(lambda x: x.reshape(-1, 7)), "reshape"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_explained(module: nn.Module, complaint: str) -> None:
    with pytest.raises(NetworkError, match=complaint):
        load_torch(module, (1, 4))


def test_a_batch_that_is_mixed_is_noticed() -> None:
    with pytest.raises(NetworkError, match=r"differs from torch"):
        load_torch(Function(lambda x: x - x.mean(dim=0, keepdim=True)), (4,))
    with pytest.raises(NetworkError, match="batch"):
        load_torch(Function(lambda x: x.max()), (4,))
    with pytest.raises(NetworkError, match="batch"):
        load_torch(Function(lambda x: x.reshape(2, 2)), (4,))
