"""A property as VNN-LIB 1.0, every number as the decimals that are exactly it, the regions in their order.

A proof is about a file. Where a property was made in Python, this is the file.
"""

from collections.abc import Iterator
from decimal import Decimal

from surebound.errors import PropertyError
from surebound.problem import Domain, Property, Region


def property_text(prop: Property) -> str:
    """The property; whoever reads it finds the same boxes and rows, numbered alike.

    >>> from surebound.problem import Robustness
    >>> print(property_text(Robustness([0.5], 1, 0.25).to_property(2)))
    (declare-const X_0 Real)
    (declare-const Y_0 Real)
    (declare-const Y_1 Real)
    (assert (>= X_0 0.25))
    (assert (<= X_0 0.75))
    (assert (or
    (and (<= Y_1 Y_0))
    ))
    <BLANKLINE>
    """
    if any(region.box.norm != "inf" for region in prop.regions):
        raise PropertyError(f"{prop.source}: the text of a property has boxes alone, no balls; expected ℓ∞")
    lines = [f"(declare-const X_{i} Real)" for i in range(prop.inputs)]
    lines += [f"(declare-const Y_{j} Real)" for j in range(prop.outputs)]
    shared = len({region.box.key for region in prop.regions}) == 1
    if shared:
        lines += [f"(assert {bound})" for bound in _bounds(prop.regions[0].box)]
    lines.append("(assert (or" if prop.regions else "(assert false)")
    for region in prop.regions:
        parts = [*([] if shared else _bounds(region.box)), *(_row(region, r) for r in range(len(region.constant)))]
        lines.append(f"(and {' '.join(parts)})" if parts else "(and true)")
    return "\n".join([*lines, *(["))"] if prop.regions else []), ""])


def exact_decimal(value: float) -> str:
    """
    >>> exact_decimal(0.1), exact_decimal(-0.0)
    ('0.1000000000000000055511151231257827021181583404541015625', '0')
    """
    return format(Decimal(value), "f") if value else "0"


def _bounds(box: Domain) -> Iterator[str]:
    for i, (low, high) in enumerate(zip(box.lower.tolist(), box.upper.tolist(), strict=True)):
        yield f"(>= X_{i} {exact_decimal(low)})"
        yield f"(<= X_{i} {exact_decimal(high)})"


def _row(region: Region, r: int) -> str:
    """One row, as a comparison of two outputs where it is one."""
    terms = [(f"Y_{j}", c) for j, c in enumerate(region.on_output[r].tolist()) if c]
    if region.on_input is not None:
        terms += [(f"X_{i}", c) for i, c in enumerate(region.on_input[r].tolist()) if c]
    constant, sign = float(region.constant[r]), "<" if region.strict[r] else "<="
    if not constant and sorted(c for _, c in terms) == [-1.0, 1.0]:
        low, high = sorted(terms, key=lambda term: -term[1])
        return f"({sign} {low[0]} {high[0]})"
    parts = [f"(* {exact_decimal(c)} {name})" for name, c in terms]
    return f"({sign} (+ {' '.join([*parts, exact_decimal(constant)])}) 0)"
