"""What is to be proved, and what came out: properties, counterexamples and verdicts.

A property lists the ways a network could go wrong. Each way is a `Region`: a domain of inputs (`surebound.domain`: a
box, or a ball within one) together with linear rows over the outputs (and, if need be, the inputs). A counterexample is
an x in the domain of some region for which

    on_output @ f(x) + on_input @ x + constant <= 0        (< 0 where the row is strict)

holds for every row of that region. The network satisfies the property if no region has one.

All numbers are float64. Boxes are rounded outward and rows to nearest, so that `Region.rounded` says whether the exact
constants of the property may differ from the stored ones (by at most one relative rounding, 2**-53, each).
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surebound.domain.sets import Ball as Ball
from surebound.domain.sets import Box as Box
from surebound.domain.sets import Domain as Domain
from surebound.domain.sets import Vector as Vector
from surebound.domain.sets import as_numbers, box_around, exact_norm, exact_radius
from surebound.domain.sets import round_down as round_down
from surebound.domain.sets import round_up as round_up
from surebound.errors import PropertyError, UsageError, quoted
from surebound.verdict import Counterexample as Counterexample
from surebound.verdict import Status as Status
from surebound.verdict import Verdict as Verdict

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Region:
    """One way to violate a property: a domain and rows that must all hold (see the module's docstring)."""

    box: Domain  # as the hull's ends go, a box; its norm says whether it is one
    on_output: Matrix  # (rows, outputs)
    on_input: Matrix | None = None  # (rows, inputs), None when no row mentions an input
    constant: Vector  # (rows,)
    strict: NDArray[np.bool_]  # (rows,)
    rounded: bool = False

    def __post_init__(self) -> None:
        for name in ("on_output", "on_input", "constant"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_numbers(getattr(self, name), f"a region's {name}"))
        rows = self.constant.shape
        shapes = {
            "on_output": self.on_output.shape[:1],
            "on_input": rows if self.on_input is None else self.on_input.shape[:1],
            "strict": self.strict.shape,
        }
        wrong = [name for name, shape in shapes.items() if shape != rows]
        if len(rows) != 1 or wrong or (self.on_input is not None and self.on_input.shape[1:] != self.box.lower.shape):
            on_input = None if self.on_input is None else self.on_input.shape
            raise PropertyError(
                "a region needs one row in each array for each constraint, and in on_input a column for each input;"
                f" got shapes {self.on_output.shape}, {on_input}, {rows} and {self.strict.shape}"
                f" of on_output, on_input, constant and strict over {self.box.lower.size} inputs"
            )

    def holds(self, x: Vector, y: Vector) -> bool:
        """Whether (x, y) violates the property here, decided in exact arithmetic over the given numbers."""
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return False
        if not self.box.contains(x):
            return False
        return all(self._row_holds(r, x, y) for r in range(len(self.constant)))

    def _row_holds(self, r: int, x: Vector, y: Vector) -> bool:
        terms = [(c, v) for c, v in zip(self.on_output[r], y, strict=True) if c]
        if self.on_input is not None:
            terms += [(c, v) for c, v in zip(self.on_input[r], x, strict=True) if c]
        products = [Fraction(float(c)) * Fraction(float(v)) for c, v in terms] + [Fraction(float(self.constant[r]))]
        value = sum(products, Fraction(0))
        if self.rounded:  # the exact constants lie within one rounding of the stored ones: demand it for all of them
            value += sum((abs(p) for p in products), Fraction(0)) / 2**52
        return value < 0 if self.strict[r] else value <= 0


def stack_rows(
    regions: Sequence[Region], count: int | None = None, part: slice = slice(None)
) -> tuple[Matrix, Matrix, Vector]:
    """All rows of all regions over a box, one after the other, the last repeated until there are `count`; of these, a
    part.

    # (rows, outputs), (rows, inputs), (rows,)
    """
    on_output = np.concatenate([r.on_output for r in regions])
    constant = np.concatenate([r.constant for r in regions])
    index = np.minimum(np.arange(len(constant) if count is None else count), len(constant) - 1)[part]
    on_input = np.zeros((len(index), regions[0].box.lower.size))
    start = 0
    for region in regions:
        if region.on_input is not None:
            own = np.flatnonzero((start <= index) & (index < start + len(region.constant)))
            on_input[own] = region.on_input[index[own] - start]
        start += len(region.constant)
    return on_output[index], on_input, constant[index]


def padded_rows(groups: Sequence[Sequence[Region]], part: slice = slice(None)) -> Iterator[NDArray[np.float64]]:
    """The rows of each group of regions, or a part of them. A group's last row is repeated until all groups have as
    many.

    # (groups, rows, outputs), (groups, rows, inputs), (groups, rows)
    """
    most = max(sum(len(region.constant) for region in group) for group in groups)
    return map(np.stack, zip(*(stack_rows(group, most, part) for group in groups), strict=True))


def by_box(regions: Sequence[Region]) -> list[list[int]]:
    """The indices of regions, grouped by their boxes: equal boxes may be different objects."""
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    known: dict[int, list[int]] = {}  # by identity: a large box takes a while to compare
    for i, region in enumerate(regions):
        if id(region.box) not in known:
            known[id(region.box)] = groups.setdefault(region.box.key, [])
        known[id(region.box)].append(i)
    return list(groups.values())


@dataclass(frozen=True)
class Port:
    """One of a network's inputs or outputs."""

    name: str
    shape: tuple[int, ...]
    type: str = ""  # as VNN-LIB 2.0 writes it, where a property declares it

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{quoted(self.name)} of shape {list(self.shape)}"


def listed(ports: Sequence[Port], most: int = 5) -> str:
    """Some ports for a sentence."""
    return ", ".join([*map(str, ports[:most]), *["…"] * (len(ports) > most)]) or "none"


@dataclass(frozen=True)
class Ports:
    """A network's inputs and outputs. Where there are several, the numbers of all stand one after the other."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True, eq=False)
class Property:
    """All the ways to violate a property, as a disjunction of regions.

    `places` has each region's number and its box's, counted in the file that the property was read from, where regions
    may stand that no input reaches. None: as the regions come. `ports` are what the file declares, in VNN-LIB 2.0.
    Where there is no region, nothing can violate the property, and `vacuous` says why.
    """

    regions: tuple[Region, ...]
    inputs: int
    outputs: int
    source: str = "property"
    places: tuple[tuple[int, int], ...] | None = None
    ports: Ports | None = None
    vacuous: str = "no input lies in any of its regions"

    def __post_init__(self) -> None:
        if len({region.box.norm for region in self.regions}) > 1:
            raise PropertyError(f"{self.source}: regions over domains of several norms; expected one norm")
        for region in self.regions:
            rows = len(region.constant)
            if region.box.lower.shape != (self.inputs,) or region.on_output.shape != (rows, self.outputs):
                inputs, outputs = region.box.lower.size, region.on_output.shape[1]
                raise PropertyError(
                    f"{self.source}: a region over {inputs} inputs and {outputs} outputs"
                    f" in a property over {self.inputs} inputs and {self.outputs} outputs"
                )

    @property
    def varying(self) -> int:
        """How many inputs vary in a region's domain, at most."""
        boxes = {id(region.box): region.box for region in self.regions}.values()
        return max((int((box.upper > box.lower).sum()) for box in boxes), default=0)

    def check_fits(self, *, inputs: int, outputs: int, ports: Ports) -> None:
        """Raise PropertyError unless the property is over a network with so many inputs and outputs, in these ports."""
        if (self.inputs, self.outputs) != (inputs, outputs):
            raise PropertyError(
                f"{self.source} is over {self.inputs} inputs and {self.outputs} outputs,"
                f" but the network has {inputs} inputs and {outputs} outputs"
            )
        if self.ports is None:
            return
        for kind, declared, found in (
            ("inputs", self.ports.inputs, ports.inputs),
            ("outputs", self.ports.outputs, ports.outputs),
        ):
            if len(declared) != len(found) or not all(map(_alike, declared, found)):
                raise PropertyError(
                    f"{self.source} declares the {kind} {listed(declared)}, but the network has {listed(found)};"
                    " expected as many, of the same shapes (or flat ones), in the same order"
                )


def _alike(declared: Port, found: Port) -> bool:
    """Whether two shapes name the same numbers in the same order: but for axes of length 1, or if one is flat."""
    long = [[n for n in port.shape if n != 1] for port in (declared, found)]
    return declared.size == found.size and (long[0] == long[1] or min(map(len, long)) <= 1)


def _class_number(label: SupportsIndex) -> int:
    """A label as an int: a bool would be a mask where it counts classes."""
    if isinstance(label, bool) or str(getattr(label, "dtype", "")).endswith("bool"):
        raise UsageError(f"the label of a robustness property is {label}; expected the number of a class, such as 3")
    try:
        return operator.index(label)
    except TypeError as error:
        raise UsageError(
            f"the label of a robustness property is {label!r}; expected the number of one class, as a whole number"
        ) from error


def _expect_layout(shape: Sequence[int], expected: Sequence[int]) -> None:
    """Raise UsageError if numbers of some shape are not in the order of a network's input: axes of 1 do not matter, nor
    does any order to a network whose input is flat."""
    given, wanted = ([size for size in sizes if size != 1] for sizes in (shape, expected))
    if len(given) > 1 and len(wanted) > 1 and given != wanted:
        raise UsageError(
            f"the input x of a robustness property has the shape {tuple(shape)}, but the network's is"
            f" {tuple(expected)}; expected that shape, or a flat array in that order"
        )


@dataclass(frozen=True, eq=False)
class Robustness:
    """No other class scores at least as high as `label` within eps of x, clipped to [low, high].

    `x` has the shape of the network's input, such as (3, 32, 32) for a colour image, or is flat, in the same order.
    `eps` may be a float or a Fraction (``Fraction(2, 255)`` or the string ``"2/255"``), taken exactly, and
    measured in `norm`: ``inf`` (every input by itself), ``2`` or ``1``, as a number or as text.
    """

    x: Vector
    label: int
    eps: float | str | Fraction
    low: float = 0.0
    high: float = 1.0
    norm: float | str = "inf"

    if TYPE_CHECKING:  # any array or tensor is taken, and kept as one of NumPy's

        def __init__(
            self,
            x: ArrayLike,
            label: int,
            eps: float | str | Fraction,
            low: float = 0.0,
            high: float = 1.0,
            norm: float | str = "inf",
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_numbers(self.x, "the input x of a robustness property").copy())
        object.__setattr__(self, "label", _class_number(self.label))
        for name in ("low", "high"):
            end = as_numbers(getattr(self, name), f"`{name}` of a robustness property")
            if end.size != 1:
                raise UsageError(f"`{name}` of a robustness property has the shape {end.shape}; expected one number")
            object.__setattr__(self, name, end.item())

    def radius(self) -> Fraction:
        """The exact radius."""
        eps = exact_radius(self.eps, "eps")
        if eps < 0:
            raise UsageError(f"eps must not be negative, got {self.eps!r}")
        return eps

    def domain(self) -> Domain:
        """The inputs within eps of x: a box in ℓ∞, else a ball within one."""
        norm = exact_norm(self.norm)
        x = self.x.reshape(-1)
        if not np.isfinite(x).all():
            raise UsageError("the input x of a robustness property is NaN or infinite; expected finite numbers")
        if x.size and not (self.low <= x.min() and x.max() <= self.high):
            raise UsageError(
                f"the input x of a robustness property ranges from {x.min():g} to {x.max():g};"
                f" expected numbers from {self.low:g} to {self.high:g} (see `low` and `high`)"
            )
        eps = self.radius()
        if norm != "inf":
            return Ball.around(x, eps, norm, low=self.low, high=self.high)
        if np.isfinite([self.low, self.high]).all() and eps > Fraction(self.high) - Fraction(self.low):
            raise UsageError(
                f"eps is {self.eps!r}, more than all of [{self.low:g}, {self.high:g}]; expected a radius such as "
                "2/255, or the range of the inputs in `low` and `high`"
            )
        return box_around(x, eps, self.low, self.high)

    def box(self) -> Box:
        """The smallest box around the inputs within eps of x, ends rounded outward."""
        return self.domain().hull

    def to_property(self, outputs: int, input_shape: Sequence[int] | None = None) -> Property:
        """One region per other class, all over the same domain; of a network whose input has this shape, if given."""
        if outputs < 2:
            raise UsageError("robustness compares the scores of classes, but the network has one output; expected more")
        if not 0 <= self.label < outputs:
            raise UsageError(f"label {self.label} is not one of the network's {outputs} outputs, 0 to {outputs - 1}")
        if input_shape is not None:
            _expect_layout(self.x.shape, input_shape)
        box = self.domain()
        regions = []
        for other in range(outputs):
            if other != self.label:
                row = np.zeros((1, outputs))
                row[0, self.label], row[0, other] = 1.0, -1.0
                regions.append(Region(box=box, on_output=row, constant=np.zeros(1), strict=np.zeros(1, dtype=bool)))
        measured = "" if box.norm == "inf" else f" in ℓ{box.norm}"
        source = f"robustness of label {self.label} within {self.eps}{measured}"
        return Property(tuple(regions), box.lower.size, outputs, source=source)
