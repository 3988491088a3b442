"""Whether a module's trace is the module: both are run on a sample, and compared call by call.

torch.fx records calls on what stands in for tensors, and Python runs beside them: a forward may overwrite tensors
unseen, count its calls, draw numbers, ask for the class of what it got, or not be what is run at all. So each call to
torch's kernels that depends on the sample has to be the same in the trace as in the module, and in the module's second
run, with the same arguments, bit by bit: also where the outputs show nothing of it. Each result is taken over from the
first run, so that another order of sums shows in none of the arguments that follow.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from surebound.errors import NetworkError

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a forward may raise when it is run."""

_ROUNDING = 1e-4  # of the largest number of a result: what another order of sums explains

Call = tuple[str, list[Any]]  # its name, and copies of its arguments


class _DifferentError(Exception):
    """Two runs differ, in a call of this name."""


def expect_same_calls(module: nn.Module, traced: fx.GraphModule, inputs: Sequence[Tensor], name: str) -> None:
    """Refuse a trace that does something else on a sample than the module, and a module that does not repeat itself.

    Both are in evaluation mode. # inputs: (1, *shape) each
    """
    chance = torch.random.get_rng_state()
    with torch.no_grad():
        first = _run(module, inputs, None)
        try:
            _run(module, inputs, first)
            drawn = not torch.equal(torch.random.get_rng_state(), chance)
        except _DifferentError as error:
            raise NetworkError(
                f"module {name} does something else when it is run again ({error}); expected a forward without state or"
                " chance"
            ) from error
        if drawn:
            raise NetworkError(f"module {name} draws random numbers; expected a forward without chance")
        try:
            _run(fx.Interpreter(traced).run, inputs, first)  # its calls; the code that is made of them may differ
        except _DifferentError as error:
            raise NetworkError(
                f"module {name} does something else than the calls that torch.fx records ({error}); expected a forward"
                " of calls that return new tensors, whatever they are given"
            ) from error


def _run(module: Callable[..., Any], inputs: Sequence[Tensor], before: "_Calls | None") -> "_Calls":
    given = [x.clone() for x in inputs]
    calls = _Calls(given, before)
    with calls:
        module(*given)
    if before is not None and len(calls.made) < len(before.made):
        raise _DifferentError(f"'{before.made[len(calls.made)][0]}' is missing")
    return calls


@final
class _Calls(TorchDispatchMode):
    """Records the calls that depend on some tensors, and compares them with those of a run before."""

    def __init__(self, inputs: Sequence[Tensor], before: "_Calls | None") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Call] = []
        self.results: list[list[Any]] = []
        self._before = before
        self._memory: dict[int, Any] = {}  # what depends on the inputs; it is kept, so that no other tensor comes there
        self._mark(inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch keeps its compiler away, for which it would import that first, in a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, layout = tree_flatten((args, kwargs or {}))
        if not any(isinstance(v, Tensor) and _place(v) in self._memory for v in given):
            return func(*args, **(kwargs or {}))
        name, arguments = f"{func}", [*given, str(layout)]
        if self._before is None:
            self.made.append((name, [*map(_copy, arguments)]))
        else:
            self._expect(name, arguments)
            self.made.append((name, []))
        found = func(*args, **(kwargs or {}))
        results = tree_flatten(found)[0]
        self._mark(results)
        if self._before is None:
            self.results.append([*map(_copy, results)])
        else:
            _take_over(name, results, self._before.results[len(self.made) - 1])
        return found

    def _mark(self, tensors: Sequence[Any]) -> None:
        self._memory.update((_place(t), t.untyped_storage()) for t in tensors if isinstance(t, Tensor) and t.numel())

    def _expect(self, name: str, arguments: list[Any]) -> None:
        assert self._before is not None
        if len(self.made) >= len(self._before.made):
            raise _DifferentError(f"'{name}' is new")
        expected, given = self._before.made[len(self.made)]
        if name != expected:
            raise _DifferentError(f"'{name}' comes in the place of '{expected}'")
        if len(given) != len(arguments) or not all(map(_same, given, arguments)):
            raise _DifferentError(f"'{name}' has other arguments")


def _take_over(name: str, results: list[Any], before: list[Any]) -> None:
    """Write results of a call before over those of the same call now, which differ by rounding at most."""
    for y, kept in zip(results, before, strict=True):
        if not isinstance(y, Tensor) or _same(y, kept):
            continue
        near = y.shape == kept.shape and bool((y - kept).abs().max() <= _ROUNDING * kept.abs().max())
        if not near:
            raise _DifferentError(f"'{name}' has other results")
        y.copy_(kept)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and repr(a) == repr(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is itself
