"""What a bound is computed on: the network seen as affine maps between *relaxed* neurons.

Two implementations: `FoldedForm` (stable neurons folded away, dense matrices between ambiguous neurons) and `GraphForm`
(the network's own convolutions, all neurons). CROWN, α-CROWN and β-CROWN are written once, against this protocol.

Sign convention of the paper: λ̄ is minus the coefficient on a neuron's output, μ̄ minus the one on its input, and a
bound is

    min over the domain of (−λ̄₀·x₀) − Σ_k ([λ̄_k]₊·b̄_k + μ̄_k·b_k) + constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

from surebound.bounds.audit import Meaning
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.minimum import Minimum
from surebound.network.arrays import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from surebound.bounds.folded import FoldedForm
else:
    torch = Lazy("torch")

Activate = Callable[[int, "Tensor"], "Tensor"]
"""(layer, λ̄_k or x̂_k: (rows, neurons of the layer)) -> μ̄_k or x_k, the same shape; with planes, μ̄_k and then theirs."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear functions of the network to be bounded from below: coefficients @ columns + constant.

    Over the whole box the true value differs from that by at most `error`.
    """

    coefficients: Tensor  # (rows, form.columns)
    constant: Tensor  # (rows,)
    error: Tensor  # (rows,)
    meaning: Meaning | None = None  # kept while bounds are audited

    def __len__(self) -> int:
        return len(self.constant)

    def __getitem__(self, index: Tensor | slice) -> Rows:
        meaning = None if self.meaning is None else self.meaning[index]
        return Rows(self.coefficients[index], self.constant[index], self.error[index], meaning)

    def both_signs(self) -> Rows:
        """The rows, then their negatives: lower bounds of these are lower and minus upper bounds."""
        return Rows(
            torch.cat([self.coefficients, -self.coefficients]),
            torch.cat([self.constant, -self.constant]),
            torch.cat([self.error, self.error]),
            None if self.meaning is None else self.meaning.both_signs(),
        )

    def to(self, dtype: torch.dtype) -> Rows:
        return Rows(self.coefficients.to(dtype), self.constant.to(dtype), self.error.to(dtype))


def joined(parts: Sequence[Rows], columns: int, like: Tensor) -> Rows:
    """Rows over the same columns, one group after the other; with none, of the kind of `like`."""
    none = like.new_zeros(0)
    return Rows(
        torch.cat([like.new_zeros(0, columns), *(p.coefficients for p in parts)]),
        torch.cat([none, *(p.constant for p in parts)]),
        torch.cat([none, *(p.error for p in parts)]),
    )


@dataclass(frozen=True, eq=False)
class Pulled:
    """The result of a backward pass."""

    at_input: Tensor  # (rows, inputs)  λ̄₀
    lam: Tensor  # (rows, neurons)  λ̄ of every relaxed neuron, or (rows, 0)
    constant: Tensor  # (rows,)  −Σ μ̄_k·b_k
    error: Tensor  # (rows,)  what rounding may have done, zero in float32


def consecutive(widths: Iterable[int]) -> tuple[slice, ...]:
    """Where each of several groups sits, one after the other.

    >>> consecutive([2, 3])
    (slice(0, 2, None), slice(2, 5, None))
    """
    return tuple(slice(a, b) for a, b in pairwise(accumulate(widths, initial=0)))


@dataclass(frozen=True, eq=False)
class Block:
    """The ambiguous neurons of one layer; in a form with planes (`surebound.bounds.planes`), theirs come after them."""

    weight: Tensor  # (ambiguous, or twice as many, columns before it)
    bias: Tensor  # (ambiguous, or twice as many)
    error: Tensor  # (ambiguous, or twice as many)
    index: Tensor  # (ambiguous,) which neurons of the layer these are
    active: Tensor  # (neurons of the layer,) 1 for those that are the identity, 0 for these and the inactive ones


class Form(Protocol):
    """A network over one domain, as affine maps between its relaxed neurons."""

    @property
    def enclosure(self) -> Enclosure:
        """Intervals of all nodes over the box."""
        ...

    @property
    def layers(self) -> tuple[slice, ...]:
        """Where each layer's relaxed neurons sit among all `neurons`."""
        ...

    @property
    def neurons(self) -> int:
        """The number of relaxed neurons."""
        ...

    @property
    def inputs(self) -> int:
        """The number of (varying) inputs."""
        ...

    @property
    def lower(self) -> Tensor:
        """l̂ of the relaxed neurons. # (neurons,)"""
        ...

    @property
    def upper(self) -> Tensor:
        """û. # (neurons,)"""
        ...

    @property
    def box_lower(self) -> Tensor:
        """The lower end of the domain's hull. # (inputs,) or (rows, inputs)"""
        ...

    @property
    def box_upper(self) -> Tensor:
        """# (inputs,) or (rows, inputs)"""
        ...

    @property
    def minimum(self) -> Minimum:
        """Where a backward pass ends: over the box, or the ball within it."""
        ...

    def backward(self, start: Tensor, activate: Activate, *, keep: bool = True) -> Pulled:
        """From minus the rows' coefficients (rows, columns) back to the input; without `keep`, λ̄ may be left empty."""
        ...

    def forward(self, x: Tensor, activate: Activate) -> tuple[Tensor, Tensor]:
        """From inputs (rows, inputs) to (x̂ of every relaxed neuron, the columns that rows multiply)."""
        ...

    def rows(self, on_output: Tensor, on_input: Tensor, constant: Tensor) -> Rows:
        """Linear functions of output and input, given by numbers that may each carry one rounding.

        # (rows, outputs), (rows, network inputs), (rows,), float64
        """
        ...

    def start_error(self, rows: Rows) -> Tensor:
        """The error of each row per unit of weight it is mixed with. # (rows,)"""
        ...

    def full_input(self, x: Tensor) -> Tensor:
        """Points over this form's inputs as points over the network's. # (rows, inputs) -> (rows, network inputs)"""
        ...

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """Which neurons of each network layer are relaxed."""
        ...

    def folded(self) -> FoldedForm | None:
        """The form as matrices between its neurons, above which there may be planes, if it is one."""
        ...

    def compressed(self) -> Form:
        """The same form, made ready for many backward passes."""
        ...

    @property
    def can_refine(self) -> bool:
        """Whether its layers can be bounded again by splitting those before them."""
        ...

    def evaluation_error(self, lam_at_input: Tensor, intercepts: Tensor) -> Tensor:
        """The rounding of n products in the final minimum and of Σ[λ̄]₊b̄ + [λ̄]₋b̲, given Σ[λ̄]₊|b̄| + [−λ̄]₊|b̲|.

        # (rows, inputs), (rows,) -> (rows,)"""
        ...

    def to(self, dtype: torch.dtype) -> Form:
        """The same in another precision."""
        ...


def affine(form: Form, slope: Tensor) -> tuple[Tensor, Tensor]:
    """x̂ and the columns at the origin, then at each unit vector: with the slope of every ReLU fixed, both are affine.

    # slope: (neurons,) float64 -> (inputs + 1, neurons), (inputs + 1, columns)
    """
    return form.forward(corners(form.inputs, slope), lambda k, v: v * slope[form.layers[k]])


def corners(inputs: int, like: Tensor) -> Tensor:
    """The origin, then each unit vector. # (inputs + 1, inputs) of the kind of `like`"""
    return torch.cat([like.new_zeros(1, inputs), torch.eye(inputs, dtype=like.dtype, device=like.device)])
