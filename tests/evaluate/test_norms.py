"""Certifying in ℓ2 and ℓ1: closed forms of a linear classifier, and what stores, reports and commands say of norms."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certifying import DIGITS, finish, take_digits
from classifiers import nearest_means, small_digits, write
from numpy.typing import NDArray

import surebound
from surebound.attacks.images import attack_images
from surebound.cli.main import main
from surebound.domain.exact import least_over_ball
from surebound.domain.sets import Ball, Norm, within
from surebound.errors import UsageError
from surebound.evaluate.radius import distance
from surebound.evaluate.stages import Certifier, Settings, property_sha256
from surebound.evaluate.store import Run, Store
from surebound.report.page import make_page

EPS: dict[Norm, Fraction] = {"2": Fraction(1, 2), "1": Fraction(3, 2)}


def fractions(values: NDArray[Any]) -> list[Fraction]:
    return [Fraction(v) for v in values.tolist()]


@pytest.mark.parametrize("norm", ["1", "2"])
def test_a_linear_classifier_is_robust_where_rational_arithmetic_says_so(tmp_path: Path, norm: Norm) -> None:
    module = nearest_means()
    weight, bias = (p.detach().double().numpy() for p in module[1].parameters())
    model, eps = surebound.load(write(module, tmp_path)), EPS[norm]  # type: ignore[operator]
    samples = take_digits(range(30))
    rows = finish(Certifier(model, eps, Settings(norm=norm, timeout=20.0)), samples)
    seen = set()
    for sample in samples:
        row, x = rows[sample.image], sample.x.astype(np.float64)
        seen.add(row.outcome)
        if not row.correct:
            continue
        ball = Ball.around(x, eps, norm, low=0.0, high=1.0)
        ends = fractions(ball.centre), eps, fractions(ball.lower), fractions(ball.upper)
        margins = [
            least_over_ball(fractions(weight[sample.label] - weight[j]), *ends, norm)
            + Fraction(float(bias[sample.label]))
            - Fraction(float(bias[j]))
            for j in sample.rivals(10)
        ]
        if min(margins) > 1e-4:
            assert row.outcome == "verified"
        if min(margins) < -1e-3:
            assert row.outcome in ("attacked", "falsified")
        assert (row.outcome == "verified") <= (min(margins) > -1e-6)
        if row.counter is not None:
            assert within(row.counter.point.astype(np.float64), x, eps, norm)
            assert row.counter.point.min() >= 0 and row.counter.point.max() <= 1
    assert {"verified", "attacked"} <= seen


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("method", ["pgd", "mi-fgsm"])
def test_attacked_images_lie_in_the_ball(tmp_path: Path, norm: Norm, method: str) -> None:
    model = surebound.load(write(small_digits(), tmp_path))  # type: ignore[operator]
    x, y = DIGITS.test.take(range(60))
    eps = {"2": "1/3", "1": "4/5"}[norm]
    found = attack_images(model, x, y, eps=eps, norm=norm, method=method)
    assert 10 < found.found.sum() < 60
    for i in np.flatnonzero(found.found).tolist():
        point = found.points[i].astype(np.float64)
        assert within(point, x[i].flatten().double().numpy(), Fraction(eps), norm)
        assert point.min() >= 0 and point.max() <= 1
        assert model.replay(found.points[i][None])[0].argmax() != y[i]


def test_distances_in_other_norms_are_exact_or_rounded_up() -> None:
    a, b = np.array([0.1, 0.5, 0.9], dtype=np.float32), np.array([0.3, 0.5, 0.7], dtype=np.float32)
    gaps = [abs(Fraction(float(p)) - Fraction(float(q))) for p, q in zip(a, b, strict=True)]
    assert distance(a, b, "1") == sum(gaps)
    square = sum(gap * gap for gap in gaps)
    far = distance(a, b, "2")
    assert square <= far**2 <= square * (1 + Fraction(1, 2**50))
    assert distance(a, a, "2") == distance(a, a, "1") == 0


def test_a_store_tells_norms_apart_and_reads_those_of_before() -> None:
    before = Run(
        model="m",
        model_sha256="a",
        dataset="d",
        shape=(1,),
        classes=("0",),
        eps="1/2",
        images=(0,),
        options={"seed": 0},
    )
    runs = [Run(**{**vars(before), "options": {"seed": 0, "norm": norm}}) for norm in ("inf", "2", "1")]
    assert (before.norm, before.radius) == ("inf", "1/2") and before.key == runs[0].key
    assert len({run.key for run in runs}) == 3
    assert [run.radius for run in runs] == ["1/2", "1/2 in ℓ2", "1/2 in ℓ1"]
    assert len({json.dumps(run.subject) for run in runs}) == 3
    sample = take_digits(range(1))[0]
    hashes = {property_sha256(sample, Fraction(1, 2), norm) for norm in ("inf", "2", "1")}  # type: ignore[arg-type]
    assert len(hashes) == 3


def test_settings_that_need_boxes_are_refused() -> None:
    with pytest.raises(UsageError, match="bisects boxes"):
        Settings(norm="2", branching="input")
    with pytest.raises(UsageError, match="expected inf, 2 or 1"):
        Settings(norm="3")  # type: ignore[arg-type]


def test_the_commands_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, store = str(write(small_digits(), tmp_path)), tmp_path / "s.sqlite"
    arguments = ["--dataset", "digits", "--first", "25", "--quiet", "--json", str(tmp_path / "a.json")]
    assert main(["certify", net, *arguments, "--norm", "2", "--eps", "1/4", "--store", str(store)]) == 0
    out = capsys.readouterr().out
    certified = json.loads((tmp_path / "a.json").read_text())
    assert (certified["norm"], certified["eps"]) == ("2", "0.25") and "proved, eps 0.25 in ℓ2)" in out
    assert certified["undecided"] == 0 and 0 < certified["verified"] < certified["standard"]
    assert main(["attack", net, *arguments, "--norm", "2", "--eps", "1/4"]) == 0
    attacked = json.loads((tmp_path / "a.json").read_text())
    assert "pgd, eps 0.25 in ℓ2)" in capsys.readouterr().out and attacked["norm"] == "2"
    assert attacked["robust"] >= certified["verified"]
    with Store(store, readonly=True) as results:
        rows = {row.image: row for row in results.rows(1)}
        assert results.runs()[1].norm == "2"
    assert not {image for image in attacked["attacked"] if rows[image].verified}
    # another norm is another run of the same store; a radius above 1 is one in ℓ1
    assert main(["certify", net, *arguments, "--norm", "1", "--eps", "5/4", "--store", str(store)]) == 0
    wide = json.loads((tmp_path / "a.json").read_text())
    assert wide["run"] == 2 and wide["eps"] == "1.25" and wide["undecided"] <= 0.1
    assert "in ℓ2" in make_page(store)
    capsys.readouterr()
    for more, complaint in (
        (["--proofs", str(tmp_path / "p")], "no proofs over a ball in ℓ2"),
        (["--branching", "input"], "bisects boxes"),
    ):
        assert main(["certify", net, *arguments, "--norm", "2", "--eps", "1/4", "--store", str(store), *more]) == 2
        assert complaint in capsys.readouterr().err


@pytest.mark.slow
def test_radii_in_l2(tmp_path: Path) -> None:
    """What is proved and what is broken are close to each other."""
    result = surebound.certify(
        write(nearest_means(), tmp_path), DIGITS, eps=3, norm=2, store=tmp_path / "s.sqlite", images=[0, 1, 2, 3],
        radius_search=True, timeout=10,
    )  # fmt: skip
    for row in result.rows:
        assert row.certified_eps is not None and row.attacked_eps is not None
        certified, attacked = Fraction(row.certified_eps), Fraction(row.attacked_eps)
        assert certified < attacked <= certified + Fraction(3, 60)
