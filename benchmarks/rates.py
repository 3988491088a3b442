"""How fast the search bounds: subproblems per second, folded against unfolded, and against the machine's SGEMM.

    python benchmarks/rates.py --threads 2

Three tables in one run, benchmarks/results/rates.md:

1. Subproblems per second of searches on cifar_base_kw (OVAL's VNN-COMP instances), on ACAS Xu, where they are boxes,
   and on an IBP-R network for CIFAR-10 (--model; trained once into benchmarks/.cache if not given). There, few images
   at 2/255 need a search: the first test images are taken that an attack breaks within 4/255, but not within 2/255, at
   nearly the smallest radius at which it does.
2. One bounding of the same nodes on the folded and on the graph form, in turns; the fastest round counts.
3. The folded form's bounding against matrix products (2048 × 2048) that run right beside it for as long: the median of
   the rounds.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from bounding import (
    ITERATIONS,
    SHARE_NOTE,
    SPLITS,
    Measured,
    Pair,
    all_pairs,
    forms_table,
    prepare,
    share_table,
    widened,
)
from cached import Picture, onnx_file, pictures, trained
from common import (
    RESULTS,
    SHARED,
    Instance,
    Unavailable,
    command_text,
    load_instance,
    machine,
    markdown_table,
    pick,
    read_instances,
    search_rate,
    search_seconds,
    write_report,
)

if TYPE_CHECKING:
    from surebound.attacks.images import ImageAttack
    from surebound.network.model import Model
    from surebound.problem import Verdict

BASE = ("cifar_base_kw-img2908", "cifar_base_kw-img4631", "cifar_base_kw-img7086")
ACAS = ("1_1_batch_2000/prop_2", "1_1_batch_2000/prop_3", "4_4_batch_2000/prop_1", "3_4_batch_2000/prop_1")
SEARCHES = 5  # of the IBP-R network
SCANNED = 80  # test images looked at for them
LOW, HIGH = Fraction(2, 255), Fraction(4, 255)  # between which an attack has to break them
HALVINGS = 5
# What is bounded on both forms: instances, and how much wider than its own the box is.
FORMS = (
    ("cifar_base_kw-img2908", 1),
    ("cifar_base_kw-img2908", 4),
    ("cifar_wide_kw-img19-", 1),
    ("cifar_deep_kw-img5168", 1),
    ("256x4/prop_13_0.03", 1),
    ("256x4/prop_13_0.03", 4),
    ("resnet_4b/prop_6_", 1),
)
OWN_FORMS = (("ibp-r-cifar", "2/255"), ("ibp-r-cifar", "8/255"), ("conv-2-255", "2/255"), ("conv-2-255", "4/255"))


@dataclass(frozen=True, kw_only=True)
class Search:
    """A verification that had to search."""

    network: str
    name: str
    verdict: "Verdict"
    expected: str = "unknown"

    @property
    def wrong(self) -> bool:
        return {self.verdict.status, self.expected} == {"sat", "unsat"}

    @property
    def seconds(self) -> float:
        return search_seconds(self.verdict)


def main() -> int:
    args = _arguments()
    import torch

    torch.set_num_threads(args.threads)
    where = machine(args.threads)
    try:
        model = args.model or trained("ibp-r-cifar", threads=args.threads, data=args.data)
        conv = trained("conv-2-255", threads=args.threads, data=args.data)
        instances = read_instances(args.vnncomp)
        searches = [
            *searches_of(instances, BASE, "upb", args.timeout),
            *own_searches(model, args.data, args.timeout),
            *searches_of(instances, ACAS, "input", args.timeout),
        ]
        measured = all_pairs(_pairs(instances, {"ibp-r-cifar": model, "conv-2-255": conv}, args.data), args.rounds)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    text = report(searches, measured, where, args.timeout)
    print("\n" + text)
    write_report(args.out, text)
    return int(any(search.wrong for search in searches))


def searches_of(
    instances: Sequence[Instance], texts: Sequence[str], branching: str, timeout: float
) -> Iterator[Search]:
    """Searches of VNN-COMP instances."""
    import surebound

    for text in texts:
        instance = pick(instances, text)
        model, problem = load_instance(instance)
        verdict = surebound.verify(model, problem, timeout=timeout, branching=branching)
        name = f"{instance.network} {instance.spec.removeprefix(instance.network + '-').split('-')[0]}"
        search = Search(network=instance.benchmark, name=name, verdict=verdict, expected=instance.expected)
        if _said(search):
            yield search


def own_searches(network: Path, data: Path, timeout: float) -> Iterator[Search]:
    """Test images at a radius that is too small for an attack, and mostly too large for root bounds."""
    import surebound

    model = surebound.load(onnx_file(network))
    found = 0
    for picture in _breakable(model, [*pictures(data, range(SCANNED))]):
        eps = _nearly_broken(model, picture)
        problem = surebound.Robustness(picture.x, picture.label, eps)
        verdict = surebound.verify(model, problem, timeout=timeout, branching="upb")
        name = f"image {picture.index}, ε {float(eps * 255):.2f}/255"
        search = Search(network="IBP-R", name=name, verdict=verdict)
        if _said(search):
            yield search
            found += 1
        if found == SEARCHES:
            break


def _breakable(model: "Model", some: Sequence[Picture]) -> list[Picture]:
    """Images that an attack breaks within the larger radius only."""
    kept = [p for p, robust in zip(some, attack(model, some, LOW).robust, strict=True) if robust]
    return [p for p, found in zip(kept, attack(model, kept, HIGH).found, strict=True) if found]


def _nearly_broken(model: "Model", picture: Picture) -> Fraction:
    """A radius at which the attack fails, just below one at which it does not."""
    low, high = LOW, HIGH
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if attack(model, [picture], middle).found[0] else (middle, high)
    return low


def attack(model: "Model", some: Sequence[Picture], eps: Fraction) -> "ImageAttack":
    """A short attack on images."""
    from surebound.attacks.images import attack_images

    x, labels = np.stack([p.x for p in some]), np.array([p.label for p in some])
    return attack_images(model, x, labels, eps=eps, restarts=2)


def _said(search: Search) -> bool:
    """Tell how it went; whether there was a search."""
    verdict = search.verdict
    rate = search_rate(verdict)
    how = "no search" if rate is None else f"{verdict.subproblems:,} subproblems, {rate:,.0f}/s"
    print(f"{search.network} {search.name}: {verdict.status} in {verdict.seconds:.1f} s, {how}", flush=True)
    return rate is not None


def _pairs(instances: Sequence[Instance], own: dict[str, Path], data: Path) -> Iterator[Pair]:
    """What to bound on both forms."""
    for text, factor in FORMS:
        yield instance_pair(pick(instances, text), factor)
    for name, eps in OWN_FORMS:
        yield _own_pair(name, own[name], data, eps)


def instance_pair(instance: Instance, factor: float = 1) -> Pair:
    """The forms of a VNN-COMP instance, its box made wider by a factor."""
    model, problem = load_instance(instance)
    name = instance.network + (f", ε × {factor:g}" if factor != 1 else "")
    return prepare(name, model, widened(problem, factor))


def _own_pair(name: str, network: Path, data: Path, eps: str) -> Pair:
    """The forms of a trained network around the first test image."""
    import surebound

    (picture,) = pictures(data, [0])
    problem = surebound.Robustness(picture.x, picture.label, eps)
    return prepare(f"{name}, ε {eps}", surebound.load(onnx_file(network)), problem)


def report(searches: Sequence[Search], measured: Sequence[Measured], where: str, timeout: float) -> str:
    """The whole Markdown page."""
    nodes = measured[0].nodes if measured else 0
    parts = [
        "# How fast the search bounds\n",
        f"{where}\n",
        f"```\n{command_text()}\n```\n",
        "## Subproblems per second\n",
        "The rate is over the seconds of the search: bounding, branching, queue and leaves, without attacks and root "
        f"bounds. The last column counts all seconds but loading. Timeout {timeout:g} s, branching UPB; on ACAS Xu, "
        "whose subproblems are boxes, the inputs are bisected.\n",
        rate_table(searches),
        "## Folded against unfolded\n",
        f"One bounding of the same {nodes} nodes, each split in {SPLITS} neurons, with {ITERATIONS} iterations of "
        "β-CROWN, on dense maps between the ambiguous neurons (folded) and on the network's own operations (graph). "
        "Multiply-adds are those of one pass for one node. Layers are bounded with fixed slopes.\n",
        forms_table(measured),
        "## Against SGEMM\n",
        SHARE_NOTE,
        share_table(measured),
    ]
    return "\n".join(parts)


def rate_table(searches: Sequence[Search]) -> str:
    """A row for each search, and one for each network."""
    header = ["network", "property", "verdict", "subproblems", "search [s]", "subproblems/s", "all [s]", "per s of all"]
    rows = []
    for network in dict.fromkeys(s.network for s in searches):
        some = [s for s in searches if s.network == network]
        rows += [[network, s.name, s.verdict.status, *_numbers([s])] for s in some]
        rows.append([f"**{network}**", "**all of these**", "", *_numbers(some)])
    return markdown_table(header, rows, left=3)


def _numbers(some: Sequence[Search]) -> list[str]:
    count = sum(s.verdict.subproblems for s in some)
    searching, whole = sum(s.seconds for s in some), sum(s.verdict.seconds for s in some)
    return [f"{count:,}", f"{searching:.2f}", f"{count / searching:,.0f}", f"{whole:.2f}", f"{count / whole:,.0f}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="the folder of data sets")
    parser.add_argument("--model", type=Path, metavar="RUN", help="an IBP-R network (default: a cached one)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of the second and third table (default 3)")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds for each search (default 10)")
    parser.add_argument("--out", type=Path, default=RESULTS / "rates.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
