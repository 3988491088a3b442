"""Modules that do something else than the calls torch.fx records, where no output at a test point shows it."""

import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound
from surebound.errors import NetworkError
from surebound.load.torch import load_torch


class Hidden(nn.Module):
    """A function of what a matrix computes, which shows from 10⁵ on."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)
        self.weight, self.function, self.runs = nn.Parameter(torch.ones(2)), function, 0
        self.register_buffer("kept", torch.ones(2))
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))
            self.first.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return F.relu(self.function(self, h) - 1e5) + 1e-3 * h


def _buffer(m: Any, h: Tensor) -> Tensor:
    m.kept.zero_()
    y = h * m.kept
    m.kept.fill_(1.0)
    return y


def _buffer_of_a_norm(m: Any, h: Tensor) -> Tensor:
    m.norm.running_mean.add_(1e6)
    y = m.norm(h)
    m.norm.running_mean.sub_(1e6)
    return y


def _constant(m: Any, h: Tensor) -> Tensor:
    mask = torch.zeros(2)
    y = h * mask
    mask[0] = 1.0
    return y + h * mask


def _assigned(m: Any, h: Tensor) -> Tensor:
    h.data = h * 100
    return h * 1.0


def _class(m: Any, h: Tensor) -> Tensor:
    return h if isinstance(h, Tensor) else -h


@pytest.mark.parametrize("function", [_buffer, _buffer_of_a_norm, _constant, _assigned, _class])
def test_what_a_forward_does_beside_its_calls_is_noticed(function: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(NetworkError, match=r"something else than the calls that torch.fx records \('aten\..*'"):
        load_torch(Hidden(function), (2,))


def _count(m: Any, h: Tensor) -> Tensor:
    m.runs += 1
    return h * m.runs


def _parameter(m: Any, h: Tensor) -> Tensor:
    m.weight.data.mul_(2)
    return h * m.weight


def _number(m: Any, h: Tensor) -> Tensor:
    return h * float(torch.rand(()))


def _bound(m: Any, h: Tensor) -> Tensor:
    m.runs += 1
    return h.clamp(max=1e6 * m.runs)


@pytest.mark.parametrize("function", [_count, _parameter, _number, _bound])
def test_a_module_has_to_do_the_same_again(function: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(NetworkError, match=r"something else when it is run again .* without state or chance"):
        load_torch(Hidden(function), (2,))


def test_random_numbers_are_noticed_where_they_happen_to_be_the_same() -> None:
    with pytest.raises(NetworkError, match="draws random numbers; expected a forward without chance"):
        load_torch(Hidden(lambda m, h: h * torch.rand(2).ceil()), (2,))


class Called(Hidden):
    """What is run is not forward."""

    def __call__(self, x: Tensor) -> Any:
        return super().__call__(-x)


def test_what_is_run_is_compared_and_not_its_forward() -> None:
    with pytest.raises(NetworkError, match="something else than the calls"):
        load_torch(Called(lambda m, h: h), (2,))
    module = Hidden(lambda m, h: h)
    module.forward = types.MethodType(lambda m, x: m.first(-x), module)  # type: ignore[method-assign]
    with pytest.raises(NetworkError, match="module Hidden has a forward of its own"):
        load_torch(module, (2,))


@pytest.fixture
def turned() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: -o if isinstance(m, nn.Linear) else None)
    yield
    handle.remove()


def test_hooks_of_all_modules_are_refused(turned: None) -> None:
    with pytest.raises(NetworkError, match="hooks for all modules are registered"):
        load_torch(Hidden(lambda m, h: h), (2,))


class AlwaysDropping(Hidden):
    """Its dropout is never off."""

    def train(self, mode: bool = True) -> "AlwaysDropping":
        super().train(mode)
        self.drop.train()
        return self


def test_a_dropout_that_eval_does_not_end_is_refused() -> None:
    load_torch(Hidden(lambda m, h: m.drop(h)), (2,))
    with pytest.raises(NetworkError, match="a dropout in training mode"):
        load_torch(AlwaysDropping(lambda m, h: m.drop(h)), (2,))


def _view_of_a_constant(m: Any, h: Tensor) -> Tensor:
    matrix = m.weight.repeat(h.shape[0], 2).unflatten(1, (2, 2))
    torch.linalg.diagonal(matrix).add_(h)
    return matrix.sum(2)


def test_a_constant_is_not_overwritten_by_what_depends_on_the_input() -> None:
    with pytest.raises(NetworkError, match="a constant is overwritten"):
        load_torch(Hidden(_view_of_a_constant), (2,))


class Times100(Tensor):
    """Tensors that are more than their numbers."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(Tensor) * 100 if "mul" in func.__name__ else found

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self


@pytest.mark.parametrize(
    ("constant", "kind"),
    [(torch.tensor([1j, 2.0 + 1j]), "complex numbers"), (torch.ones(2).as_subclass(Times100), "the class Times100")],
)
def test_numbers_that_are_more_than_real_are_refused(constant: Tensor, kind: str) -> None:
    with pytest.raises(NetworkError, match=f"a tensor of {kind} is not supported"):
        load_torch(Hidden(lambda m, h: (h * constant).abs()), (2,))


def test_a_module_runs_as_it_does_without_gradients() -> None:
    module = Hidden(lambda m, h: h if torch.is_grad_enabled() else -h).eval()
    x = torch.tensor([[3e6, -5e6]])
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(load_torch(module, (2,)).forward(x.double()).numpy(), expected, rtol=1e-5)


def test_a_module_that_cannot_be_copied_is_a_sentence() -> None:
    module = Hidden(lambda m, h: h)
    module.last = module.first(torch.ones(1, 2))  # type: ignore[assignment]
    with pytest.raises(NetworkError, match=r"module Hidden cannot be copied: .*; expected one that copy.deepcopy can"):
        surebound.load(module, input_shape=(2,))


def test_a_violated_property_is_not_proved_of_a_trace_that_is_not_the_module() -> None:
    """torch computes 0 everywhere, and what fx records is h on the second tensor."""
    module = Hidden(_constant).eval()
    with pytest.raises(NetworkError):
        surebound.verify(
            surebound.load(module, input_shape=(2,)),
            surebound.Robustness(np.array([0.5, 0.4]), 0, eps="1/100"),
        )


def test_modules_of_float64_and_constants_of_any_type_are_compared() -> None:
    table = torch.arange(2.0, dtype=torch.float64)
    load_torch(Hidden(lambda m, h: h * table + torch.arange(2)).double(), (2,))
    load_torch(Hidden(lambda m, h: torch.where(torch.tensor([True, False]), h, table.float())), (2,))


def test_an_unused_counter_does_not_matter() -> None:
    def count(m: Any, h: Tensor) -> Tensor:
        m.runs += 1
        m.kept += 1
        return h

    load_torch(Hidden(count), (2,))


def test_parametrizations_are_read_as_what_they_compute() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    nn.utils.parametrizations.weight_norm(module[0])
    nn.utils.parametrizations.spectral_norm(module[2])
    network, x = load_torch(module, (3,)), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(network.forward(x), module.eval()(x).detach(), rtol=1e-9, atol=1e-12)
    assert nn.utils.parametrize.is_parametrized(module[0])


@pytest.mark.parametrize(
    ("wrap", "complaint"),
    [
        (nn.DataParallel, r"DataParallel is around another; expected that one \(module\.module\)"),
        (torch.compile, r"OptimizedModule is around another; expected that one \(module\._orig_mod\)"),
        (lambda m: torch.jit.trace(m, torch.zeros(1, 2)), "is compiled; expected the one that it was made from"),
        (torch.jit.script, "is compiled; expected the one that it was made from"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_around_a_module_is_named(wrap: Callable[[nn.Module], nn.Module], complaint: str) -> None:
    with pytest.raises(NetworkError, match=complaint):
        load_torch(wrap(nn.Sequential(nn.Linear(2, 2))), (2,))


def test_torch_does_not_import_its_compiler() -> None:
    code = (
        "import sys, torch, surebound\n"
        "surebound.load(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval(), input_shape=(1, 2, 2))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
