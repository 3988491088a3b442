"""`check`: reads network, property and proof, and goes through the proof's steps."""

import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surebound.check.arithmetic import Arithmetic, CheckError, InvalidError
from surebound.check.file import Proof, read_bytes
from surebound.check.network import read_network
from surebound.check.steps import Steps
from surebound.check.vnnlib import read_property

LINES = "the checker's own lines, Python and its integers, and that the files are the ones meant"
READER = "onnx's reading of the network's weights and attributes"
ROUNDED = "NumPy's float64 arithmetic: sums of any order, each operation rounded to nearest, with error terms"
EXACT = "Python's fractions: no rounding"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a check. `slack` is the smallest bound of all leaves of regions, in region `tightest`."""

    valid: bool
    reason: str = ""
    trusted: tuple[str, ...] = ()
    regions: int = 0
    claims: int = 0
    leaves: int = 0
    slack: float | None = None
    tightest: int | None = None
    seconds: float = 0.0


File = str | Path
Progress = Callable[[int, int, int], None]
"""(steps done, steps in all, leaves so far)"""


def _quiet(done: int, steps: int, leaves: int) -> None:
    """No progress is shown."""


def check(network: File, property: File, proof: File, *, exact: bool = False, progress: Progress = _quiet) -> Result:
    """Whether a proof shows that no input violates a property of a network.

    Raises `CheckError` if a file cannot be read, or holds what the checker does not cover.
    """
    began, arithmetic = time.monotonic(), Arithmetic(exact)
    texts = read_bytes(network), read_bytes(property)
    problem = read_property(texts[1])
    net = read_network(texts[0], problem.inputs, arithmetic)
    if net.sizes[net.output] != problem.outputs:
        raise CheckError(f"the network has {net.sizes[net.output]} outputs, the property {problem.outputs}")
    hashes = {"network": hashlib.sha256(texts[0]).hexdigest(), "property": hashlib.sha256(texts[1]).hexdigest()}
    with contextlib.closing(Proof(proof)) as opened:
        state = Steps(net, problem, opened, arithmetic)
        reason = judge(state, hashes, progress)
    return Result(
        valid=not reason,
        reason=reason,
        trusted=(LINES, READER, EXACT if exact else ROUNDED),
        regions=len(problem.regions),
        claims=state.claims,
        leaves=state.leaves,
        slack=float(state.slack) if state.tightest >= 0 else None,
        tightest=state.tightest if state.tightest >= 0 else None,
        seconds=time.monotonic() - began,
    )


def judge(state: Steps, hashes: dict[str, str], progress: Progress) -> str:
    """Why a proof that should be about files with these hashes is invalid; nothing if it is valid."""
    about, done = state.proof.about, -1
    if (about.get("format"), about.get("version")) != ("surebound proof", 1):
        raise CheckError("the proof is not of version 1 of surebound's format")
    for name, value in {**hashes, "widths": state.network.widths}.items():
        if about.get(name) != value:
            return f"it is about another network or property: its '{name}' differs"
    steps = about.get("steps")
    if not isinstance(steps, list):
        return "it has no list of steps"
    try:
        with np.errstate(all="ignore"):  # overflow and NaN show nothing, and need no warning
            for done, step in enumerate(steps):
                state.report = lambda done=done: progress(done, len(steps), state.leaves)  # type: ignore[misc]
                state.report()
                state.check(done, step)
    except InvalidError as error:
        return f"step {done}: {error}"
    regions = enumerate(state.property.regions)
    missing = [r for r, region in regions if not region.empty and r not in state.proved]
    return f"nothing is proved of {len(missing)} regions, the first of them region {missing[0]}" if missing else ""
