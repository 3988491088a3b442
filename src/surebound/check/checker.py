"""`check`: reads network, property and proof, and goes through the proof's steps."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surebound.check.arithmetic import Arithmetic, CheckError, InvalidError
from surebound.check.file import Proof, read_bytes
from surebound.check.network import read_network
from surebound.check.steps import Steps
from surebound.check.vnnlib import read_property

TRUSTED = (
    "the checker's own lines, Python and its integers, and that the files are the ones meant",
    "onnx's reading of the network's weights and attributes",
)
ROUNDED = "NumPy's float64 arithmetic: sums of any order, each operation rounded to nearest, with error terms"
EXACT = "Python's fractions: no rounding"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a check. `slack` is the smallest bound of all leaves of regions, in region `tightest`."""

    valid: bool
    reason: str = ""
    trusted: tuple[str, ...] = ()
    regions: int = 0
    steps: int = 0
    claims: int = 0
    leaves: int = 0
    slack: float | None = None
    tightest: int | None = None
    seconds: float = 0.0


Progress = Callable[[int, int, int], None]
"""(steps done, steps in all, leaves so far)"""


def check(
    network: str | Path,
    property: str | Path,
    proof: str | Path,
    *,
    exact: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Whether a proof shows that no input violates a property of a network.

    Raises `CheckError` if a file cannot be read, or holds what the checker does not cover.
    """
    began, arithmetic = time.monotonic(), Arithmetic(exact)
    texts = read_bytes(network), read_bytes(property)
    problem = read_property(texts[1])
    net = read_network(texts[0], problem.inputs, arithmetic)
    if net.sizes[net.output] != problem.outputs:
        raise CheckError(f"the network has {net.sizes[net.output]} outputs, the property {problem.outputs}")
    reason, steps, done, opened = "", [], 0, Proof(proof)
    state = Steps(net, problem, opened, arithmetic)
    try:
        steps = _steps(opened.about, texts, net.widths)
        with np.errstate(all="ignore"):  # overflow and NaN show nothing, and need no warning
            for done, step in enumerate(steps):
                if progress is not None:
                    state.report = lambda done=done: progress(done, len(steps), state.leaves)  # type: ignore[misc]
                    state.report()
                state.check(done, step)
        missing = [r for r, region in enumerate(problem.regions) if not region.empty and r not in state.proved]
        if missing:
            reason = f"nothing is proved of {len(missing)} regions, the first of them region {missing[0]}"
    except InvalidError as error:
        reason = f"step {done}: {error}" if steps else str(error)
    finally:
        opened.close()
    return Result(
        valid=not reason,
        reason=reason,
        trusted=(*TRUSTED, EXACT if exact else ROUNDED),
        regions=len(problem.regions),
        steps=len(steps),
        claims=state.claims,
        leaves=state.leaves,
        slack=float(state.slack) if state.tightest >= 0 else None,
        tightest=state.tightest if state.tightest >= 0 else None,
        seconds=time.monotonic() - began,
    )


def _steps(about: dict[str, Any], texts: tuple[bytes, bytes], widths: list[int]) -> list[Any]:
    """The steps of a proof that is about these files."""
    if (about.get("format"), about.get("version")) != ("surebound proof", 1):
        raise CheckError("the proof is not of version 1 of surebound's format")
    for name, text in zip(("network", "property"), texts, strict=True):
        if about.get(name) != hashlib.sha256(text).hexdigest():
            raise InvalidError(f"it is about another {name}: the SHA-256 differs")
    if about.get("widths") != widths:
        raise InvalidError(f"it counts other neurons than the network's {sum(widths)}")
    steps = about.get("steps")
    if not isinstance(steps, list):
        raise InvalidError("it has no list of steps")
    return steps
