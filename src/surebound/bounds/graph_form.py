"""The graph form: every neuron of every layer, with the network's own (convolutional) operations.

The form for public bounds over many boxes at once, and the search's fallback when a folded form would not fit in
memory. Rows come box by box: with B boxes and S rows each, row i belongs to box i // S.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from surebound.bounds.audit import auditor
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Activate, Pulled, Rows, consecutive
from surebound.bounds.minimum import BallMinimum, BoxMinimum, Minimum
from surebound.bounds.rounding import DECIMAL, SLACK, TINY, gamma
from surebound.network.arrays import Lazy, concat, counting, flat, library, repeated, retyped, zeros
from surebound.network.graph import Network, dot
from surebound.network.linear import size

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")


@dataclass(frozen=True, eq=False)
class GraphForm:
    """Bounds functions of the node `target` and of the input: a row's columns are [target | input].

    `depth` layers lie at or before the target; only those are relaxed.
    """

    network: Network
    enclosure: Enclosure
    target: int
    depth: int
    lower: Tensor  # (boxes, neurons), or (neurons,) for one box
    upper: Tensor
    per_box: int = 1  # rows for each box
    rigorous: bool = True

    @staticmethod
    def at(enclosure: Enclosure, target: int) -> GraphForm:
        """The form whose rows are over one node; needs the enclosure to reach it."""
        network = enclosure.network
        enclosure.extend(target)
        depth = sum(layer <= target for layer in network.layers)
        bounds = [enclosure.layer(k) for k in range(depth)]
        empty = zeros(enclosure.lower[0], enclosure.boxes, 0)
        lower = concat([empty, *(b[0] for b in bounds)], 1)
        upper = concat([empty, *(b[1] for b in bounds)], 1)
        if enclosure.boxes == 1:
            lower, upper = lower[0], upper[0]
        return GraphForm(network, enclosure, target, depth, lower, upper)

    @property
    def layers(self) -> tuple[slice, ...]:
        return consecutive(self.network.width(k) for k in range(self.depth))

    @property
    def neurons(self) -> int:
        return self.lower.shape[-1]

    @property
    def inputs(self) -> int:
        return self.network.inputs

    @property
    def columns(self) -> int:
        return size(self.network.nodes[self.target].shape) + self.inputs

    @property
    def box_lower(self) -> Tensor:
        return self._box(self.enclosure.lower[0])

    @property
    def box_upper(self) -> Tensor:
        return self._box(self.enclosure.upper[0])

    @property
    def minimum(self) -> Minimum:
        if self.enclosure.balls is None:
            return BoxMinimum(self.box_lower, self.box_upper)
        balls = self.enclosure.balls.to(self.lower.dtype)
        return BallMinimum(balls.map(lambda t: t[0] if len(t) == 1 else repeated(t, self.per_box)))

    def _box(self, bound: Tensor) -> Tensor:
        box = retyped(flat(bound), self.lower.dtype)
        return box[0] if len(box) == 1 else repeated(box, self.per_box)

    def rows(self, on_output: Tensor, on_input: Tensor | None = None, constant: Tensor | None = None) -> Rows:
        """Rows over the target (for properties, the output) and the input; what they round off is in `start_error`."""
        n = len(on_output)
        if on_input is None:
            on_input = zeros(on_output, n, self.inputs)
        zero = zeros(on_output, n)
        constant = zero if constant is None else constant
        meaning = None
        if (audit := auditor()) is not None:
            meaning = audit.meaning(self.enclosure.network, {self.target: on_output}, {0: on_input})
            meaning = None if meaning is None else meaning.plus(constant)
        return Rows(concat([on_output, on_input], 1), constant, zero, meaning)

    def start_error(self, rows: Rows) -> Tensor:
        """Per row and unit of weight: the rounding of mixing rows with weights. # (rows,)"""
        reach = concat([library(m).amax(flat(m), 0) for m in map(self.enclosure.magnitude, (self.target, 0))], 0)
        # an input's own coefficient is added last; constants are added to those of all operations
        coefficients = gamma(len(rows) + DECIMAL + 1) * (abs(rows.coefficients) @ reach)
        return (coefficients + self.enclosure.constant_error(len(rows) + DECIMAL) * abs(rows.constant)) * SLACK

    def backward(self, start: Tensor, activate: Activate, *, keep: bool = True) -> Pulled:
        at_target, at_input = start[:, : -self.inputs], start[:, -self.inputs :]
        lam = zeros(start, len(start), self.neurons if keep else 0)
        error = zeros(start, len(start))
        layers = self.layers

        def pull(k: int, coefficient: Tensor) -> Tensor:
            rows = flat(coefficient)
            if keep:
                lam[:, layers[k]] = rows
            mu = activate(k, rows)
            if self.rigorous:
                error[:] += dot(abs(mu), self.enclosure.relu_error(k))
            return mu.reshape(coefficient.shape)

        shape = self.network.nodes[self.target].shape
        begin = {self.target: at_target.reshape(-1, *shape)}
        if self.target == 0:
            begin, at_input = {0: (at_target + at_input).reshape(-1, *shape)}, zeros(at_input, *at_input.shape)
        pulled, constant, op_error = self.network.pull(begin, pull, self.enclosure.errors if self.rigorous else None)
        return Pulled(flat(pulled) + at_input, lam, -constant, error + op_error)

    def forward(self, x: Tensor, activate: Activate) -> tuple[Tensor, Tensor]:
        xhat = x.new_zeros(len(x), self.neurons)
        layers = self.layers

        def push(k: int, values: Tensor) -> Tensor:
            rows = flat(values)
            xhat[:, layers[k]] = rows
            return activate(k, rows).reshape(values.shape)

        at_target = self._truncated.trace(x.reshape(-1, *self.network.input_shape), push).flatten(1)
        return xhat, torch.cat([at_target, x], dim=1)

    @property
    def _truncated(self) -> Network:
        return replace(self.network, nodes=self.network.nodes[: self.target + 1], output=self.target)

    def evaluation_error(self, lam_at_input: Tensor, intercepts: Tensor) -> Tensor:
        reach = flat(self.enclosure.magnitude(0))
        intercept = gamma(self.neurons + 2 * self.depth + 1) * intercepts
        return (gamma(self.inputs) * dot(abs(lam_at_input), reach) + intercept) * SLACK + TINY

    def folded(self) -> None:
        return None

    def compressed(self) -> GraphForm:
        return self

    @property
    def can_refine(self) -> bool:
        return False

    def full_input(self, x: Tensor) -> Tensor:
        return x

    def to(self, dtype: torch.dtype) -> GraphForm:
        return replace(
            self,
            network=self.enclosure.network.to(dtype),
            lower=self.lower.to(dtype),
            upper=self.upper.to(dtype),
            rigorous=dtype == torch.float64,
        )

    @property
    def indices(self) -> tuple[Tensor, ...]:
        return tuple(counting(self.lower, self.network.width(k)) for k in range(self.depth))
