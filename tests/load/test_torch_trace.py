"""Calls that overwrite their arguments, and modules that do more than their calls say."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound
from surebound.errors import NetworkError, SureboundError, UnsupportedOpError, UsageError
from surebound.load.torch import load_torch


class Written(nn.Module):
    """A function of what a matrix computes, which no test point shows to overwrite it: the biases are large."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(2, 2), nn.Linear(2, 2), function
        self.register_buffer("kept", torch.ones(2))
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))
            self.first.bias.fill_(40.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def _statement(h: Tensor) -> Tensor:
    F.relu_(h)
    return h


def _method(h: Tensor) -> Tensor:
    h.clamp_(max=3.0)
    return h + 1.0


def _both(h: Tensor) -> Tensor:
    y = F.relu(h, True)
    return h + y


def _sum(h: Tensor) -> Tensor:
    y = torch.relu(h - 10.0)
    y += h
    return y - h


def _sum_by_another_name(h: Tensor) -> Tensor:
    y = torch.relu(h - 10.0)
    z = y
    z += h
    return y


def _shape(h: Tensor) -> Tensor:
    y = h.relu_()
    return y.view(h.size(0), 2)


def _view_of_the_result(h: Tensor) -> Tensor:
    y = F.relu_(h).view(-1, 2)
    return y + h


def _number(h: Tensor) -> Tensor:
    n = h.size(1)
    m = n
    m += 1
    return h * n + m


RIGHT = [_statement, _method, _both, _sum, _sum_by_another_name, _shape, _view_of_the_result, _number]


@pytest.mark.parametrize("function", RIGHT, ids=lambda f: f.__name__)
def test_what_is_read_after_a_call_that_overwrites_it_is_the_result(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    module = Written(function).eval()
    network = load_torch(module, (2,))
    x = np.array([[-60.0, -39.0], [-45.0, 3.0], [0.0, -100.0]], dtype=np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(network.forward(torch.from_numpy(x).double()).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_an_activation_in_place_beside_a_skip_is_not_proved_as_one_beside_it() -> None:
    module = Written(_both).eval()
    with torch.no_grad():
        module.last.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        module.last.bias.copy_(torch.tensor([-10.0, 0.0]))
    box = surebound.Box(np.full(2, -61.0), np.full(2, -59.0))  # the matrix computes −20, and torch goes on with 0
    assert module(torch.full((1, 2), -60.0)).argmax() == 1
    region = surebound.Region(
        box=box,
        on_output=np.array([[1.0, -1.0]]),
        on_input=np.zeros((1, 2)),
        constant=np.zeros(1),
        strict=np.zeros(1, bool),
    )
    verdict = surebound.verify(
        surebound.load(module, input_shape=(2,)), surebound.Property((region,), inputs=2, outputs=2)
    )
    assert verdict.status == "sat"


def _base_of_a_view(h: Tensor) -> Tensor:
    h.view(-1, 2).relu_()
    return h


def _view_of_a_base(h: Tensor) -> Tensor:
    y = h.flatten(1)
    F.relu_(h)
    return y


def _chunk(h: Tensor) -> Tensor:
    a, b = h.chunk(2, 1)
    a.clamp_(min=0.0)
    return h + b


def _dropout(h: Tensor) -> Tensor:
    y = F.dropout(h, 0.5, training=False)
    y.relu_()
    return h


@pytest.mark.parametrize("function", [_base_of_a_view, _view_of_a_base, _chunk, _dropout], ids=lambda f: f.__name__)
def test_what_is_overwritten_and_read_by_another_name_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"overwrites what '.*' reads as '.*'; expected the call that returns"):
        load_torch(Written(function), (2,))


def test_a_tensor_of_the_module_is_not_overwritten() -> None:
    module = Written(lambda h: h)
    module.function = lambda h: module.kept.add_(h)  # type: ignore[operator]
    with pytest.raises(UnsupportedOpError, match="overwrites a tensor of the module"):
        load_torch(module, (2,))


def _sequential(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.ReLU(), nn.Linear(2, 2))


def _hooked() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda m, i, o: torch.where(o > 30, 100 * o, o))
    return _sequential(module)


def _hooked_as_a_whole() -> nn.Module:
    module = _sequential(nn.Linear(2, 2))
    module.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    return module


def _weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _sequential(nn.utils.weight_norm(nn.Linear(2, 2)))


def _pruned() -> nn.Module:
    from torch.nn.utils import prune

    module = nn.Linear(2, 2)
    prune.l1_unstructured(module, "weight", 0.5)
    return _sequential(module)


@pytest.mark.parametrize("make", [_hooked, _hooked_as_a_whole, _weight_norm, _pruned], ids=lambda f: f.__name__)
def test_hooks_that_the_trace_does_not_see_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"module .* has hooks, which may change .* prune\.remove"):
        load_torch(make(), (2,))


def test_a_forward_put_on_a_module_of_torch_is_refused() -> None:
    module = nn.Linear(2, 2)
    module.forward = lambda x: 2 * x  # type: ignore[method-assign,assignment]
    with pytest.raises(UnsupportedOpError, match=r"module '0' \(Linear\) has a forward of its own"):
        load_torch(_sequential(module), (2,))


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.ReLU, UsageError, r"the class ReLU; expected ReLU\(…\)"),
        (lambda x: x, UsageError, "a function; expected an nn.Module"),
        (nn.Sequential(nn.LazyLinear(2)), NetworkError, "'0.weight' has no shape yet; expected .* run once"),
        (nn.Linear(2, 2, device="meta"), NetworkError, "'weight' is on the device 'meta'"),
    ],
)
def test_what_is_no_module_with_numbers_is_refused(module: Any, error: type[SureboundError], message: str) -> None:
    with pytest.raises(error, match=message):
        load_torch(module, (2,))


@pytest.mark.parametrize("shape", [3, ("a",), (2.0,), "ab"])
def test_a_shape_is_whole_numbers(shape: Any) -> None:
    with pytest.raises(UsageError, match=r"input_shape is .*; expected whole numbers such as \(3, 32, 32\)"):
        load_torch(nn.Linear(2, 2), shape)


@torch.fx.wrap
def relu(h: Tensor) -> Tensor:
    """Not torch's, from 10⁵ on."""
    return h.clamp(0.0, 1e5)


@torch.fx.wrap
def flatten(h: Tensor) -> Tensor:
    """Not torch's, either."""
    return h.flatten(1).clamp(max=1e5)


@pytest.mark.parametrize("function", [lambda h: relu(h), lambda h: flatten(h)])
def test_a_function_of_ones_own_is_not_known_by_its_name(function: Callable[[Tensor], Tensor]) -> None:
    """No test point is as large, and 10⁵ is beyond all positions."""
    with pytest.raises(UnsupportedOpError, match="function of your own"):
        load_torch(Written(function), (2,))
