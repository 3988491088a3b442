"""UPB against FSB and SR on a COLT-trained MNIST network, in the shape of the table in the paper's figure 2.

    python benchmarks/branching_mnist.py --first 100 --eps 0.1 --eps 0.12 --timeout 20 --threads 2

Every rule verifies every image within ε in the same process, one rule right after the other, early stopping off. Images
the network gets wrong are skipped. Results go to the log as they come (--resume goes on with it); the report is
benchmarks/results/branching_mnist.md.

The file takes the normalised image, so the box of a property is the pixel box [x - ε, x + ε] ∩ [0, 1] sent through
(· - mean) / std in exact fractions, each end rounded outward.
"""

import argparse
import gzip
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RESULTS, SHARED, Log, Record, command_text, machine, markdown_table, write_report
from numpy.typing import NDArray

if TYPE_CHECKING:
    from surebound.network.model import Model
    from surebound.problem import Property

RULES = ("upb", "fsb", "sr")
OUTPUTS = 10
REGIONS = OUTPUTS - 1  # a property has one for every other class; more subproblems than that means it was split
MEAN, STD = Fraction("0.1307"), Fraction("0.3081")
KEY = ("eps", "image", "rule", "timeout", "threads")
ENDED = ("sat", "unsat")

Group = dict[str, Record]
"""The results of one property by rule."""


def main() -> int:
    args = _arguments()
    for path in (args.model, args.mnist):
        if not path.exists():
            print(f"'{path}' is not there; --model and --mnist name the network and the folder of MNIST", file=sys.stderr)
            return 2
    epsilons = args.eps or ["0.1", "0.12"]
    log = Log(args.log, KEY, resume=args.resume)
    where = machine(args.threads)
    groups: dict[str, list[Group]] = {eps: [] for eps in epsilons}
    skipped = 0
    for image, label, right in _images(args):
        if not right:
            skipped += 1
            continue
        for eps in epsilons:
            group = _run_property(args, log, image, label, eps)
            groups[eps].append(group)
            print(_line(eps, group), flush=True)
    write_report(args.out, report(groups, args, skipped, where))
    clashes = sum(contradicts(g) for gs in groups.values() for g in gs)
    print(f"{clashes} contradictions between the rules")
    return int(clashes > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=SHARED / "models" / "colt_mnist_0.1.onnx", help="the network")
    parser.add_argument("--mnist", type=Path, default=SHARED / "data" / "mnist", help="the folder of MNIST's .gz files")
    parser.add_argument("--first", "--limit", type=int, default=100, metavar="N", help="the first N test images")
    parser.add_argument("--eps", action="append", metavar="E", help="a radius in pixels; repeat it (default 0.1, 0.12)")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds for each property and rule (default 20)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--log", type=Path, default=RESULTS / "branching_mnist.jsonl", help="results as JSON lines")
    parser.add_argument("--resume", action="store_true", help="keep what the log already holds")
    parser.add_argument("--out", type=Path, default=RESULTS / "branching_mnist.md", help="the report")
    return parser.parse_args()


class _Runner:
    """The loaded network and images, and one verification that is not counted, so that all imports are done."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        import surebound

        torch.set_num_threads(args.threads)
        self.model: Model = surebound.load(args.model)
        self.pixels = read_idx(args.mnist / "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28 * 28)
        self.labels = read_idx(args.mnist / "t10k-labels-idx1-ubyte.gz", 8)
        warm_up = robustness(self.pixels[0], int(self.labels[0]), Fraction(1, 10))
        surebound.verify(self.model, warm_up, timeout=args.timeout)
