"""The verifier with its attacks off, asked about properties that are violated at a known point: none may be `unsat`.

    python tests/false_claims.py --minutes 60

No counterexample is ever confirmed, so nothing but its bounds keeps the search from answering `unsat`.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from drawn import VIOLATING, draw, draw_region
from knots import knot
from lying import LAZY, Patch, false_at
from networks import NETWORKS, random_box, sample
from verifications import ALONE, as_box, model, outputs, prop

import surebound
from surebound.network.model import Model
from surebound.problem import Property
from surebound.verify.confirm import Confirm
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.strategy import Strategy

DEPTHS = (0.0, 1e-12, 1e-6, 1e-3)  # of the violation, at the lowest point that sampling finds
WAYS: dict[str, tuple[str, Strategy]] = {
    "auto": ("auto", Strategy()),
    "upb, graph form": ("upb", replace(ALONE, folded_limit=0)),
    "fsb": ("fsb", ALONE),
    "sr, layers refined": ("sr", LAZY),
    "upb, planes from the root on": ("upb", replace(ALONE, planes_after=1, planes_gain=-1.0)),
    "inputs bisected": ("input", ALONE),
}


def claim(folder: Path, seed: int) -> tuple[Model, Property] | None:
    """A property that is violated: of an ONNX graph of many operations, of a network in exact arithmetic, or of one
    whose kinks and weights are awkward."""
    rng = np.random.default_rng(seed)
    if seed % 3 == 2:
        network, part = knot(rng)
        return model(network), prop(network, part)
    if seed % 3 == 1:
        graph = draw(rng)
        loaded = surebound.load(graph.save(folder / "network.onnx"))
        region, violated = draw_region(rng, graph, VIOLATING)
        return (loaded, Property((region,), loaded.network.inputs, loaded.network.outputs)) if violated else None
    network = list(NETWORKS.values())[seed // 3 % len(NETWORKS)](rng)
    ends = random_box(rng, network, radius=rng.choice([0.05, 0.2, 0.8]))
    box, row = as_box(*ends), rng.normal(size=network.outputs)
    points = sample(rng, ends[0][0], ends[1][0], 2000).flatten(1).numpy()
    lowest = points[(outputs(network, points) @ row).argmin()]
    return model(network), false_at(network, box, row, lowest, rng.choice(DEPTHS))


def ask(folder: Path, seed: int, seconds: float) -> Counter[str]:
    """How often each answer came out, none of them `unsat`."""
    found = claim(folder, seed)
    answers = Counter[str]()
    if found is None:
        return answers
    ball = found[1].regions[0].box.norm != "inf"
    for way, (branching, strategy) in WAYS.items():
        if ball and branching == "input":
            continue
        with Patch.context() as patch:
            patch.setattr(Confirm, "__call__", lambda *_: None)
            options = Options(timeout=seconds, branching=branching, strategy=strategy, quick_attack=None, seed=seed)
            status = verify(*found, options).status
        assert status in ("timeout", "unknown"), f"seed {seed}: wrong {status} by {way}"
        answers[status] += 1
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    end, seed, answers = time.monotonic() + 60 * args.minutes, args.seed, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            answers += ask(Path(folder), seed, 0.25)
            seed += 1
    asked = f"{seed - args.seed} seeds, {answers.total()} verifications of violated properties"
    sys.stdout.write(f"{asked}: {dict(answers)}; no unsat\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
