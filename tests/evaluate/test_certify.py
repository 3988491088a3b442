"""Certifying images: outcomes against MILP and closed forms, stores that resume, radii between what is true."""

import hashlib
import os
import signal
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from certifying import DIGITS, EPS, finish, no_attack, take_digits
from classifiers import least_margins, nearest_means, small_digits, write
from minima import milp_minimum

import surebound
from surebound.data.dataset import Dataset, Images
from surebound.errors import MissingFileError, NetworkError, StoreError, UsageError
from surebound.evaluate import stages
from surebound.evaluate.certify import certify
from surebound.evaluate.certifying import BATCH, CertifyProgress
from surebound.evaluate.radius import distance
from surebound.evaluate.stages import Certifier, Open, Settings
from surebound.evaluate.store import Row, Store
from surebound.evaluate.task import Task
from surebound.evaluate.worker import CertifySetup, Result, Work
from surebound.load.onnx_file import fingerprint
from surebound.problem import Robustness
from surebound.verify.cascade import End, Settled
from surebound.work.inline import InlinePool
from surebound.work.processes import Processes
from surebound.work.task import Ended, Lost

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(small_digits(), tmp_path_factory.mktemp("net"))


@pytest.mark.parametrize("blind", [False, True])
def test_outcomes_against_milp(net: Path, monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    """Without the attack, bounds and search must come to the same conclusions alone."""
    if blind:
        monkeypatch.setattr(stages, "attack_images", no_attack)
    model, samples = surebound.load(net), take_digits(range(40))
    rows = finish(Certifier(model, EPS, Settings(timeout=30.0)), samples)
    seen = set()
    for sample in samples:
        row = rows[sample.image]
        seen.add((row.outcome, row.stage))
        logits = model.replay(sample.x[None])[0]
        assert row.predicted == int(logits.argmax()) and row.correct == (row.predicted == sample.label)
        if not row.correct:
            assert row.stage == "standard"
            continue
        box = Robustness(sample.x.astype(np.float64), sample.label, EPS).box()
        margins = [np.eye(10)[sample.label] - np.eye(10)[j] for j in range(10) if j != sample.label]
        least = min(milp_minimum(model.network, box, c, 0.0).value for c in margins)
        if row.verified:
            assert least > -1e-6
        else:
            assert least < 1e-6 and row.outcome in ("attacked", "falsified") and row.counter is not None
            inside = np.abs(row.counter.point.astype(np.float64) - sample.x) <= float(EPS) + 1e-12
            replayed = model.replay(row.counter.point[None])[0]
            assert inside.all() and replayed[row.counter.adversarial] >= replayed[sample.label]
    outcomes = {outcome for outcome, _ in seen}
    assert {"misclassified", "verified", "falsified" if blind else "attacked"} <= outcomes
    assert {"crown", "search" if blind else "attack"} <= {stage for _, stage in seen}


def test_rows_that_come_together_are_one_transaction(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    add = Store.add

    def count(self: Store, run: int, *rows: Row) -> None:
        written.append(len(rows))
        add(self, run, *rows)

    monkeypatch.setattr(Store, "add", count)
    task = Task(model=net, dataset=DIGITS, eps=EPS, images=range(60))
    found = certify(task, tmp_path / "s.sqlite")
    searched = sum(row.stage in ("alpha-crown", "search") for row in found.rows)
    assert sum(written) == len(found.rows) == 60 and len(written) == 2 + searched


def test_a_proved_rival_is_not_searched_again(net: Path) -> None:
    model = surebound.load(net)
    certifier = Certifier(model, EPS, Settings(attack="pgd", steps=1, restarts=1, targets=1))
    _, left = certifier.screen(take_digits(range(60)))
    label = {sample.image: sample.label for sample in take_digits(range(60))}
    assert left and all(0 < len(image.rivals) < 10 and label[image.image] not in image.rivals for image in left)
    assert all(image.margin <= 0 for image in left)
    assert any(len(image.rivals) < 9 for image in left)


def test_images_of_a_network_that_was_misread(net: Path) -> None:
    model = surebound.load(net)
    shifted = replace(model, replay=lambda x: model.replay(x) + np.float32(0.1))
    with pytest.raises(NetworkError, match=r"differs from onnxruntime by .* at image 7;"):
        Certifier(shifted, EPS, Settings()).screen(take_digits(range(7, 9)))


def test_images_do_not_depend_on_their_batch(net: Path) -> None:
    certifier = Certifier(surebound.load(net), EPS, Settings())
    together = finish(certifier, take_digits(range(30)))
    for sample in take_digits(range(30)):
        alone = finish(certifier, [sample])[sample.image]
        assert (alone.outcome, alone.stage) == (together[sample.image].outcome, together[sample.image].stage)


def test_linear_network_in_closed_form(tmp_path: Path) -> None:
    file = write(nearest_means(), tmp_path)
    result = surebound.certify(file, "digits", eps="1/20", store=tmp_path / "s.sqlite", images=range(100))
    clean, least = (least_margins(nearest_means(), radius)[:100] for radius in (0.0, 1 / 20))
    assert [row.correct for row in result.rows] == (clean > 0).tolist()
    assert [row.verified for row in result.rows] == (least > 0).tolist()
    assert result.accuracies.undecided == 0


def test_a_stage_of_ones_own_counts_as_search(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guess:
        name = "guess"

        def run(self, open_: Any) -> list[Settled]:
            ends: tuple[End, ...] = ("violated", "proved", "undecided")
            return [Settled(stage=self.name, end=ends[question.sample.image % 3]) for question in open_]

    monkeypatch.setattr(stages, "closing", lambda engine: [Guess()])
    certifier = Certifier(surebound.load(net), EPS, Settings())
    rows = [certifier.search(sample, Open(sample.image, sample.label, (0,))) for sample in take_digits(range(3))]
    assert [(row.outcome, row.stage) for row in rows] == [
        ("falsified", "search"),
        ("verified", "search"),
        ("unknown", "search"),
    ]


def test_a_search_without_time(net: Path) -> None:
    samples = take_digits(range(60))
    _, left = Certifier(surebound.load(net), EPS, Settings()).screen(samples)
    row = Certifier(surebound.load(net), EPS, Settings(timeout=1e-9)).search(samples[left[0].image], left[0])
    assert row.outcome == "timeout" and row.counter is None


def _task(net: Path, images: range, dataset: Dataset = DIGITS, **settings: Any) -> Task:
    return Task(model=net, dataset=dataset, eps=EPS, images=images, settings=Settings(**settings))


def _outcomes(rows: tuple[Row, ...]) -> list[tuple[int, str]]:
    return [(row.image, row.outcome) for row in rows]


def test_resume_goes_on_and_extends(net: Path, tmp_path: Path) -> None:
    whole = certify(_task(net, range(BATCH + 20)), tmp_path / "whole.sqlite")
    store = tmp_path / "s.sqlite"
    certify(_task(net, range(10)), store)
    before = {row.image: row.seconds for row in certify(_task(net, range(10)), store, resume=True).rows}
    seen: list[CertifyProgress] = []
    after = certify(_task(net, range(BATCH + 20)), store, resume=True, on_progress=seen.append)
    assert _outcomes(after.rows) == _outcomes(whole.rows)
    assert {row.image: row.seconds for row in after.rows[:10]} == before  # nothing was done again
    assert seen[0].done == 10 and seen[-1].done == seen[-1].total == BATCH + 20
    assert seen[-1].accuracies == after.accuracies == whole.accuracies


def test_workers_come_to_the_same_conclusions(net: Path, tmp_path: Path) -> None:
    alone = certify(_task(net, range(70)), tmp_path / "a.sqlite")
    together = certify(_task(net, range(70)), tmp_path / "b.sqlite", engine=Processes(2))
    assert _outcomes(alone.rows) == _outcomes(together.rows)


def test_results_are_not_overwritten(net: Path, tmp_path: Path) -> None:
    certify(_task(net, range(3)), tmp_path / "s.sqlite")
    with pytest.raises(UsageError, match="--resume"):
        certify(_task(net, range(3)), tmp_path / "s.sqlite")
    certify(_task(net, range(3), timeout=7.0), tmp_path / "s.sqlite")  # another run
    with Store(tmp_path / "s.sqlite", readonly=True) as store:
        assert [len(store.rows(number)) for number in store.runs()] == [3, 3]


def test_other_images_under_the_same_name_are_noticed(net: Path, tmp_path: Path) -> None:
    certify(_task(net, range(3)), tmp_path / "s.sqlite")
    x, y = DIGITS.test.take(range(360))
    other = replace(DIGITS, test=Images(x.flip(3).contiguous(), y))
    with pytest.raises(StoreError, match="other images"):
        certify(_task(net, range(3), other), tmp_path / "s.sqlite", resume=True)


def test_a_network_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"model\.onnx"):
        surebound.certify(tmp_path, "digits", eps="0.1", store=tmp_path / "s.sqlite")
    with pytest.raises(UsageError, match="eps"):
        surebound.certify(tmp_path, "digits", eps=1.5, store=tmp_path / "s.sqlite")


def test_radii_of_a_linear_network(tmp_path: Path) -> None:
    """The exact radius, by bisection over the closed form, lies between the two."""
    file = write(nearest_means(), tmp_path)
    result = surebound.certify(
        file, "digits", eps="1/8", store=tmp_path / "s.sqlite", images=range(12), radius_search=True
    )
    exact = np.zeros(12)
    for bit in 2.0 ** -np.arange(3, 30):
        larger = exact + bit
        robust = np.array([least_margins(nearest_means(), radius)[i] > 0 for i, radius in enumerate(larger)])
        exact = np.where(robust, larger, exact)
    clean = least_margins(nearest_means(), 0.0)[:12] > 0
    assert clean.sum() > 8
    for row, radius in zip(result.rows, exact, strict=True):
        if not row.correct:
            assert row.certified_eps is None and row.attacked_eps is None
            continue
        certified = Fraction(row.certified_eps or 0)
        assert float(certified) <= min(radius, 1 / 8) + 1e-9
        if row.attacked_eps is None:
            assert certified == Fraction(1, 8)
        else:
            attacked = Fraction(row.attacked_eps)
            assert radius - 1e-6 <= attacked <= Fraction(1, 8) and attacked - certified < Fraction(1, 8 * 60)


def test_distance_is_exact() -> None:
    a, b = np.array([0.1, 0.5, 0.9], dtype=np.float32), np.array([0.3, 0.5, 0.7], dtype=np.float32)
    exact = max(abs(Fraction(float(p)) - Fraction(float(q))) for p, q in zip(a, b, strict=True))
    assert distance(a, b) == exact


def test_a_single_black_pixel_image() -> None:
    """Boxes at the border of [0, 1] are clipped."""
    box = Robustness(np.array([0.0, 1.0, 0.5]), 0, "1/4").box()
    assert box.lower.tolist() == [0.0, 0.75, 0.25] and box.upper.tolist() == [0.25, 1.0, 0.75]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"images": [0, 0]}, "twice"),
        ({"images": [0, 360]}, "360"),
        ({"images": [-1]}, "-1"),
        ({"images": "01"}, "indices"),
        ({"images": [0.5]}, "indices"),
        ({"workers": 0}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"attack": "best"}, "best"),
        ({"seed": -1}, "seed"),
        ({"timeout": 0}, "timeout"),
        ({"branching": "best"}, "branching"),
    ],
)
def test_mistakes_leave_no_store(net: Path, tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        surebound.certify(net, "digits", **{"eps": "1/30", "store": tmp_path / "s.sqlite", "images": [0], **changes})
    assert not (tmp_path / "s.sqlite").exists()


def test_images_of_any_kind(net: Path, tmp_path: Path) -> None:
    for k, images in enumerate((np.arange(3), iter([0, 1, 2]), torch.arange(3))):
        result = surebound.certify(net, DIGITS, eps="1/30", store=tmp_path / f"{k}.sqlite", images=images)
        assert [row.image for row in result.rows] == [0, 1, 2]


def test_a_network_for_other_images(tmp_path: Path, net: Path) -> None:
    wide = replace(DIGITS, train=_reshaped(DIGITS.train), test=_reshaped(DIGITS.test))
    few = replace(DIGITS, classes=(*DIGITS.classes, "none"))
    for dataset in (wide, few):
        with pytest.raises(NetworkError, match="expected"):
            surebound.certify(net, dataset, eps="1/30", store=tmp_path / "s.sqlite", images=[0])
    with pytest.raises(UsageError, match="path of an ONNX file"):
        surebound.certify(small_digits(), DIGITS, eps="1/30", store=tmp_path / "s.sqlite")  # type: ignore[arg-type]
    assert not (tmp_path / "s.sqlite").exists()


def _reshaped(images: Images) -> Images:
    return Images(images.pixels.reshape(-1, 1, 4, 16), images.labels)


def test_weights_in_another_file_belong_to_the_network(net: Path, tmp_path: Path) -> None:
    """Other weights beside the same file are another network, and old results are not its own."""
    model = onnx.load(str(net))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    before = fingerprint(tmp_path / "m.onnx")
    weights = bytearray((tmp_path / "w.bin").read_bytes())
    weights[3] ^= 1
    (tmp_path / "w.bin").write_bytes(bytes(weights))
    assert fingerprint(tmp_path / "m.onnx") != before
    assert fingerprint(net) == hashlib.sha256(net.read_bytes()).hexdigest()


def test_data_sets_of_one_name_are_not_mixed(net: Path, tmp_path: Path) -> None:
    certify(_task(net, range(3)), tmp_path / "s.sqlite")
    other = replace(DIGITS, test=Images(DIGITS.test.pixels.flip(3).contiguous(), DIGITS.test.labels))
    with pytest.raises(StoreError, match="other images"):
        certify(_task(net, range(3, 6), other), tmp_path / "s.sqlite", resume=True)


def test_radii_are_written_one_by_one(net: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    certify(
        _task(net, range(6), radius_search=True, timeout=5.0),
        tmp_path / "s.sqlite",
        on_progress=lambda progress: seen.append(progress.done),
    )
    assert len(set(seen)) >= 5


def test_a_killed_workers_images_are_done_by_another(net: Path, tmp_path: Path) -> None:
    def kill(progress: CertifyProgress) -> None:
        if not progress.done:
            Thread(target=_kill_a_child, daemon=True).start()

    alone = certify(_task(net, range(100)), tmp_path / "a.sqlite")
    together = certify(_task(net, range(100)), tmp_path / "b.sqlite", engine=Processes(2), on_progress=kill)
    assert _outcomes(alone.rows) == _outcomes(together.rows)


def _kill_a_child() -> None:
    tasks = Path(f"/proc/{os.getpid()}/task")
    while not (children := [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]):
        time.sleep(0.01)
    os.kill(int(children[0]), signal.SIGKILL)


@dataclass(frozen=True)
class _Deadly:
    """An engine whose workers die of some images."""

    images: set[int]
    on: str  # the kind of work that they die of
    asked: list[Any]
    remote: bool = False
    slots: int = 1

    def open(self, setup: CertifySetup) -> "_Deadly":
        self.asked.append(setup())
        return self

    def begin(self, number: int, work: Work, grace: float) -> None:
        self.asked[1:] = [number, work]

    def stop(self, number: int) -> None: ...

    def wait(self, seconds: float | None) -> list[Any]:
        do, number, work = self.asked
        if type(work).__name__ == self.on and self.images & set(work.images):
            return [Lost(number, "out of memory")]
        return [Ended(number, do(work, None), 0.1)]

    def __enter__(self) -> "_Deadly":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("kind", ["Screen", "Open", "Probe"])
def test_an_image_that_workers_die_of_is_undecided(net: Path, tmp_path: Path, kind: str) -> None:
    probed = kind == "Probe"
    task = _task(net, range(40), radius_search=probed)
    alone = certify(_task(net, range(40)), tmp_path / "a.sqlite")
    searched = [row.image for row in alone.rows if row.stage in ("alpha-crown", "search")]
    wrong = [row.image for row in alone.rows if not row.correct]
    deadly = {searched[0]} if kind == "Open" else {3, wrong[0]}
    rows = certify(task, tmp_path / "b.sqlite", engine=_Deadly(deadly, kind, [])).rows
    for before, after in zip(alone.rows, rows, strict=True):
        expected = before.outcome
        if before.image in deadly:
            assert "out of memory (3 times)" in after.reason or not before.correct
            assert after.certified_eps is None and after.predicted == before.predicted
            expected = "unknown" if before.correct and not probed else before.outcome
        assert after.outcome == expected


def test_the_hardest_images_are_searched_first(net: Path, tmp_path: Path) -> None:
    engine = _Noting([])
    certify(_task(net, range(200), attack="pgd", steps=1, restarts=1, targets=1), tmp_path / "s.sqlite", engine=engine)
    kinds = [type(work).__name__ for work in engine.seen]
    assert kinds == sorted(kinds, key=["Screen", "Open"].index) and kinds.count("Screen") == 4
    margins = [work.margin for work in engine.seen if isinstance(work, Open)]
    assert len(margins) > 5 and margins == sorted(margins)


@dataclass(frozen=True)
class _Noting:
    """Inline, and what it was asked to do in which order."""

    seen: list[Work]
    remote: bool = False

    def open(self, setup: CertifySetup) -> InlinePool[Work, Result]:
        def noting() -> Any:
            do = setup()
            return lambda work, call: (self.seen.append(work), do(work, call))[1]

        return InlinePool(noting)
