"""`surebound check NET.onnx PROPERTY.vnnlib PROOF`: `valid` or `invalid: why` on the first line, exit code 0 or 1."""

import json
import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from surebound.cli.arguments import check_network, check_proof, check_property, output_files, write_whole
from surebound.cli.command import Command
from surebound.cli.display import StatusLine, complain
from surebound.errors import visible

if TYPE_CHECKING:
    from surebound.check import Result


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY.vnnlib", help="the property (may be gzipped)")
    parser.add_argument("proof", metavar="PROOF", help="a proof that no input violates it")
    parser.add_argument("--exact", action="store_true", help="compute with fractions: slow, for small networks")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")


def _run(args: Namespace) -> int:
    net, problem, proof = check_network(args.net), check_property(args.property), check_proof(args.proof)
    files = output_files(keep=(net, problem, proof), json=args.json)
    # Its products are small: a second thread would mostly wait, and waste a busy machine's time while it does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from surebound.check import CheckError, check

    line = StatusLine(quiet=args.quiet)

    def show(done: int, steps: int, leaves: int) -> None:
        line.show(done / max(steps, 1), f"step {done + 1} of {steps}, {leaves:,} leaves checked")

    try:
        result = check(net, problem, proof, exact=args.exact, progress=show)
    except CheckError as error:
        line.done()
        return complain(str(error))
    line.done()
    print("valid" if result.valid else f"invalid: {visible(result.reason)}", flush=True)
    if not args.quiet:
        _print_details(result)
    if "json" in files:
        write_whole(files["json"], json.dumps(asdict(result), indent=2, allow_nan=False) + "\n")
    return 0 if result.valid else 1


def _print_details(result: "Result") -> None:
    counts = (
        (result.regions, "region", "regions"),
        (result.claims, "bound", "bounds"),
        (result.leaves, "leaf", "leaves"),
    )
    named = (f"{count:,} {one if count == 1 else many}" for count, one, many in counts)
    print(f"{result.seconds:.2f} s, {', '.join(named)}")
    if result.valid and not result.leaves:
        print("nothing was to be proved: no input keeps to the bounds of the property")
    if result.slack is not None:
        print(f"tightest leaf: {result.slack:.3g} above 0, in region {result.tightest}")
    for sentence in result.trusted if result.valid else ():  # nothing rests on what is refused
        print(f"trusted: {sentence}")


COMMAND = Command("check a proof that no input violates a property", _configure, _run)
