"""A form whose passes look at the clock at every layer, so that one over a wide network does not outlast the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast, final

from surebound.bounds.form import Activate, Form, Pulled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Check = Callable[[], None]
"""Called often; raises when the time is up."""


def timed(form: Form, check: Check) -> Form:
    """The form, with `check` called at every layer of its passes."""
    return cast(Form, _Timed(form, check))


@final
class _Timed:
    """All of the form's protocol is the form's own, but for the passes."""

    def __init__(self, form: Form, check: Check) -> None:
        self._form, self._check = form, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._form, name)

    def backward(self, start: Tensor, activate: Activate, *, keep: bool = True) -> Pulled:
        return self._form.backward(start, self._checking(activate), keep=keep)

    def forward(self, x: Tensor, activate: Activate) -> tuple[Tensor, Tensor]:
        return self._form.forward(x, self._checking(activate))

    def to(self, dtype: torch.dtype) -> Form:
        return timed(self._form.to(dtype), self._check)

    def _checking(self, activate: Activate) -> Activate:
        def checked(k: int, values: Tensor) -> Tensor:
            self._check()
            return activate(k, values)

        return checked
