"""A small program that checks proofs, and trusts nothing else of surebound: `check(network, property, proof).valid`.

It reads the network and the property itself, multiplies matrices, and never solves, searches or optimises. The format,
and why an accepted proof means that no input violates the property, are in `docs/proof.md`.
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from surebound.check.arithmetic import Arithmetic, CheckError, expect
from surebound.check.file import Proof, read_bytes
from surebound.check.network import read_network
from surebound.check.steps import Progress, Steps
from surebound.check.vnnlib import read_property

__all__ = ["CheckError", "Result", "check"]

File = str | Path
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


def check(
    network: File, property: File, proof: File, *, exact: bool = False, progress: Progress = lambda *_: None
) -> Result:
    """Whether a proof shows that no input violates a property; CheckError about files that it does not cover."""
    began = time.monotonic()
    texts = {"network": read_bytes(network), "property": read_bytes(property)}
    problem = read_property(texts["property"])
    net = read_network(texts["network"], problem.inputs, Arithmetic(exact))
    outputs = net.sizes[net.output]
    expect(outputs == problem.outputs, f"the network has {outputs} outputs, the property {problem.outputs}")
    with Proof(proof) as opened:
        state = Steps(net, problem, opened, progress)
        reason = state.judge({name: hashlib.sha256(text).hexdigest() for name, text in texts.items()})
    return Result(
        valid=not reason,
        reason=reason,
        trusted=(LINES, READER, EXACT if exact else ROUNDED),
        regions=len(problem.regions),
        claims=state.claims,
        leaves=state.leaves,
        slack=None if state.tightest is None else float(state.slack),
        tightest=state.tightest,
        seconds=time.monotonic() - began,
    )
