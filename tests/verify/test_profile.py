"""The paper's search as a profile: its numbers, what it never does, and that its results stay apart."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import random_box, random_fc
from verifications import model as float32_model

import surebound
from surebound.attacks.mi_fgsm import MIFGSM
from surebound.bounds.beta_crown import Ascent
from surebound.branching.mixture import Mixture
from surebound.cli.main import main
from surebound.errors import UsageError
from surebound.evaluate.stages import Certifier, Sample, Settings
from surebound.evaluate.store import Row, Run, Store
from surebound.network.model import Model
from surebound.problem import Box, Property, Region, Verdict
from surebound.report.tables import branching, branching_markdown, by_search
from surebound.reproduce.scales import SCALES
from surebound.verify import SEARCHES, bounder, search, search_stages
from surebound.verify.iterations import Iteration
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.spaces import neurons
from surebound.verify.spaces.neurons import NeuronSpace
from surebound.verify.strategy import default, paper, profile

EAGER: dict[str, Any] = {  # whatever a strategy may do, it is given a reason for at once
    "root": Ascent(iterations=0),
    "batch": 2,
    "patience": -1.0,
    "standstill": 1,
    "standstill_share": 1e9,
    "neuron_limit": 0,
}


def hard_property() -> tuple[Model, Property]:
    """One that holds by a thousandth, and takes dozens of splits to prove."""
    rng = np.random.default_rng(0)
    network = random_fc(rng, (4, 10, 10, 2))
    lower, upper = random_box(rng, network, radius=2.0)
    box, row = Box(lower.flatten().numpy(), upper.flatten().numpy()), rng.normal(size=2)
    constant = np.array([1e-3 - milp_minimum(network, box, row, 0.0).value])
    region = Region(box=box, on_output=row[None], constant=constant, strict=np.zeros(1, dtype=bool))
    return float32_model(network), Property((region,), 4, 2)


def watched(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of what a search enters, from here on."""
    entered: list[str] = []

    def watch(owner: Any, attribute: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, attribute)

        def call(*args: Any, **more: Any) -> Any:
            entered.append(name)
            return original(*args, **more)

        patch.setattr(owner, attribute, call)

    watch(search_stages, "refine", "refinement")
    watch(search_stages, "search_inputs", "bisection")
    watch(NeuronSpace, "_polish", "polishing")
    watch(Mixture, "choose", "mixture")
    watch(search.Programs, "run", "programs")
    watch(neurons, "descend_folded", "descents")
    watch(bounder, "find_planes", "planes")
    return entered


def decide(options: Options, **eager: Any) -> Verdict:
    model, problem = hard_property()
    chosen = replace(options, timeout=60.0, quick_attack=None, strategy=replace(options.strategy, **EAGER, **eager))
    return verify(model, problem, chosen)


@pytest.mark.slow
def test_the_default_enters_what_the_paper_did_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = watched(monkeypatch)
    for change in ({"programs": False}, {"refinements": ()}):  # of which either may end before the other begins
        assert decide(Options.of("default"), input_limit=-1, planes_after=1, **change).status == "unsat"
    assert decide(Options.of("default"), input_limit=20).status == "unsat"
    assert set(entered) == {"refinement", "bisection", "polishing", "mixture", "programs", "descents", "planes"}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["auto", "upb", "fsb", "sr"])
def test_the_papers_search_never_does(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = watched(monkeypatch)
    verdict = decide(Options.of("paper", branching=rule))
    assert verdict.status == "unsat" and verdict.subproblems > 20
    assert verdict.branching == ("upb" if rule == "auto" else rule)
    assert entered == []


def test_bisection_by_name_is_not_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = watched(monkeypatch)
    assert decide(Options.of("paper", branching="input")).status == "unsat"
    assert entered == ["bisection"]


def test_the_papers_numbers() -> None:
    for rule, batch in (("auto", 1200), ("upb", 1200), ("sr", 1200), ("fsb", 1000)):
        assert profile("paper", rule) == paper(rule) and paper(rule).batch == batch
    strategy = paper()
    assert strategy.layers.slopes == ("fastlin", "crown")
    assert strategy.layers.ascent == Ascent(iterations=5, lr=1.0, decay=0.98, betas=(0.9, 0.999))
    assert (strategy.ascent.lr, strategy.ascent.decay) == (0.1, 0.98)
    iteration, counts = Iteration(strategy.iterations, strategy.iterations.count), []
    while iteration.wants_probe(4):
        counts.append(iteration.count)
        iteration = iteration.probed(more_gain=1.0, branch_gain=0.0)
    assert [*counts, iteration.count] == [2, 7, 14, 28, 56, 100]
    draws = {"relative": False, "lr": (1e-5, 1e-3), "mu": (0.0, 1.0), "decay": (0.85, 0.99), "diversify": 0}
    options = Options.of("paper")
    for attack in (options.quick_attack, options.search_attack):
        assert attack == MIFGSM(steps=100, restarts=10, **draws)  # type: ignore[arg-type]
    assert SCALES["paper"].attack[:2] == (500, 100)
    assert profile("default", "upb") == default() == Options.of("default").strategy == Options().strategy
    assert Options.of("default") == Options()


def test_attacks_of_the_papers_search_begin_at_its_minimisers(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[torch.Tensor | None] = []

    def run(*_: object, start: torch.Tensor | None = None, **more: Any) -> Any:
        starts.append(start)
        return original(*_, start=start, **more)

    original = MIFGSM.run
    monkeypatch.setattr(MIFGSM, "run", run)
    always = {"later_attacks": 1.0, "later_attacks_after": 0.0}
    decide(replace(Options.of("paper"), search_attack=MIFGSM(steps=2, restarts=10)), **always)
    assert starts and all(s is not None and s.shape[0] == 1 and s.shape[1] <= 10 for s in starts)
    starts.clear()
    decide(replace(Options.of("default"), search_attack=MIFGSM(steps=2, restarts=10)), **always)
    assert starts and all(s is None for s in starts)


def test_first_attacks_draw_as_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[MIFGSM] = []

    def run(self: MIFGSM, *args: Any, **more: Any) -> Any:
        seen.append(self)
        return original(self, *args, **more)

    original = MIFGSM.run
    monkeypatch.setattr(MIFGSM, "run", run)
    rng = np.random.default_rng(0)
    network = random_fc(rng, (4, 10, 10, 3))
    model, x = float32_model(network), np.full(4, 0.5, dtype=np.float32)
    sample = Sample(0, x, int(model.replay(x[None]).argmax()))
    for name in SEARCHES:
        Certifier(model, Fraction(3, 10), Settings.of(name)).screen([sample])  # more than bounds settle
    assert sorted({(a.relative, a.lr, a.steps, a.restarts) for a in seen}, reverse=True) == [
        (True, (0.01, 0.5), 40, 3),
        (False, (1e-5, 1e-3), 100, 10),
    ]


def test_results_of_two_profiles_never_mix(tmp_path: Path) -> None:
    def run(**options: Any) -> Run:
        return Run(
            model="m",
            model_sha256="0",
            dataset="cifar10",
            shape=(4,),
            classes=("a", "b"),
            eps="2/255",
            images=(0,),
            options={"timeout": 1.0, **options},
            notes={"experiment": "branching", "setting": "2/255", "network": "ibp-r", "branching": "upb"},
        )

    old, own, published = run(), run(search="default"), run(search="paper")
    assert old.key == own.key != published.key  # rows of a time without profiles are the default's
    assert (old.search, own.search, published.search) == ("default", "default", "paper")
    with Store(tmp_path / "store.sqlite") as store:
        for number, (described, seconds) in enumerate(((old, 1.0), (published, 3.0)), start=1):
            assert store.begin(described) == number
            row = Row(image=0, label=0, predicted=0, outcome="verified", stage="search", seconds=seconds, subproblems=5)
            store.add(number, row)
        assert store.find(own) == 1
        rows = branching(store)
    assert [(row.search, row.seconds) for row in rows] == [("paper", 3.0), ("default", 1.0)]
    tables = {name: branching_markdown(part) for name, part in by_search(rows).items()}
    assert list(tables) == ["paper", "default"]
    assert "Ours: cifar10, the paper's search." in tables["paper"]
    assert "Ours: cifar10, surebound's own search." in tables["default"]


def test_every_table_says_what_differs() -> None:
    for scale in SCALES.values():
        for experiment in ("table1", "branching"):
            texts = {name: " ".join(scale.differences(experiment, name)) for name in SEARCHES}
            assert all(sentence in text for sentence in scale.differs for text in texts.values())
            assert "not the paper's" in texts["default"] and "not the paper's" not in texts["paper"]
            steps, restarts, _ = scale.attack
            assert f"{steps} iterations and {restarts} restarts" in texts["paper"]
            assert ("(the paper: 500 and 100)" in texts["paper"]) == (scale.name != "paper")


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    model, problem = hard_property()
    with pytest.raises(UsageError, match="unknown search 'papers'; expected one of: default, paper"):
        surebound.verify(model, problem, search="papers")
    with pytest.raises(UsageError, match="no branching 'mixture'; expected auto, upb, fsb, sr or input"):
        surebound.verify(model, problem, search="paper", branching="mixture")
    with pytest.raises(UsageError, match="no branching 'mixture'"):
        Settings.of("paper", branching="mixture")
    with pytest.raises(SystemExit) as caught:
        main(["verify", "net.onnx", "property.vnnlib", "--search", "papers"])
    assert caught.value.code == 2 and "'papers'" in capsys.readouterr().err


def test_the_public_function_takes_the_profile() -> None:
    model, problem = hard_property()
    verdict = surebound.verify(model, problem, search="paper", timeout=60)
    assert (verdict.status, verdict.branching) == ("unsat", "upb")
