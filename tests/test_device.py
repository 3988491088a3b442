"""Everything runs on the device that it is told, and leaves torch's default alone (`pretend` has the places)."""

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classifiers import small_digits, write
from commands import surebound as command
from commands import write_tiny
from curves import ROWS, Case
from networks import random_conv, random_fc
from pretend import elsewhere, nowhere, place
from proving import problem, prove
from verifications import ALONE, WEAK, as_box, exact, model, prop, region

import surebound
from surebound.attacks import ATTACKS
from surebound.attacks.images import attack_images
from surebound.bounds import BOUNDS, OVER_BALLS
from surebound.bounds.around import enclosure_over
from surebound.bounds.audit import auditing
from surebound.bounds.device import expect_exact, plain_convolutions
from surebound.bounds.root import LayerBounding, fold_network
from surebound.check import check
from surebound.data import load_dataset
from surebound.errors import UsageError
from surebound.load.onnx import load_model
from surebound.problem import Ball, Robustness
from surebound.train import LOSSES
from surebound.train.config import train_config
from surebound.verify import worker
from surebound.verify.clock import Clock
from surebound.verify.node import Nodes
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.queue import Queue
from surebound.verify.spaces.programs import ProgramSpace
from surebound.verify.strategy import Refinement, Strategy
from surebound.verify.subject import Subject, specify
from surebound.verify.tree import Tree
from surebound.work.inline import Inline

Place = Callable[[], AbstractContextManager[str]]
PLACES = pytest.mark.parametrize("place_", [nowhere, elsewhere])
OPTIONS = Options(quick_attack=WEAK, strategy=ALONE, timeout=60.0)
GRAPH = replace(ALONE, folded_limit=0)
REFINED = replace(ALONE, patience=0.0, refinements=(Refinement(rounds=2),), refine_gain=-1.0)
PLANED = replace(ALONE, planes_after=1, planes_gain=-1e9)
DESCENDING = Strategy(later_attacks=1.0, later_attacks_after=0.0)
SEEDS = {"fc": 1, "conv": 3, "residual": 3, "pool": 4}


# ---- the places themselves


def test_nowhere_a_tensor_without_a_device_is_of_no_use() -> None:
    given = torch.ones(2)
    with nowhere() as device:
        assert (torch.zeros(2, device=device) + given).tolist() == [1.0, 1.0]
        with pytest.raises(RuntimeError):
            (torch.zeros(2) + given).tolist()
    assert torch.zeros(2).device.type == "cpu"


def test_elsewhere_tensors_of_two_places_do_not_meet() -> None:
    given = torch.ones(2)
    with elsewhere() as device:
        there = given.to(device)
        assert (place(given).type, place(there).type, str(there.device)) == ("cpu", "cuda", "cuda:0")
        assert (there * 2 + there.new_ones(2))[torch.tensor([0])].tolist() == [3.0]
        assert place(there.cpu()).type == place(torch.zeros(2)).type == "cpu"
        for wrong in (
            lambda: given + there,
            lambda: torch.cat([there, given]),
            lambda: given[torch.zeros(1, dtype=torch.int64, device=device)],
            lambda: torch.rand(2, generator=torch.Generator("cpu"), device=device),
        ):
            with pytest.raises(RuntimeError):
                wrong()
        for wrong in (there.numpy, lambda: np.asarray(there)):
            with pytest.raises(TypeError):
                wrong()


# ---- verify


def both_sides(place_: Place, kind: str, options: Options) -> None:
    """Thresholds 1e-3 below and above the exact minimum."""
    network, box, row, least = exact(kind, SEEDS[kind])
    asked = [prop(network, region(box, row, constant)) for constant in (-least + 1e-3, -least - 1e-3)]
    given = model(network)
    with place_() as device:
        unsat, sat = (verify(given, question, replace(options, device=device)) for question in asked)
    assert (unsat.status, sat.status) == ("unsat", "sat")
    assert unsat.subproblems > 1


@PLACES
@pytest.mark.parametrize("branching", ["auto", "upb", "fsb", "sr", "mixture", "input"])
def test_verdicts_of_every_rule(branching: str, place_: Place) -> None:
    both_sides(place_, "fc", replace(OPTIONS, branching=branching))


@PLACES
@pytest.mark.parametrize("kind", ["conv", pytest.param("residual", marks=pytest.mark.slow), "pool"])
@pytest.mark.parametrize(
    "strategy",
    [ALONE, GRAPH, REFINED, DESCENDING, PLANED],
    ids=["kernel", "graph", "refined", "descents", "planes"],
)
def test_verdicts_of_every_form(kind: str, strategy: Strategy, place_: Place) -> None:
    both_sides(place_, kind, replace(OPTIONS, strategy=strategy))


@PLACES
@pytest.mark.parametrize("kind", ["fc", "residual"])
def test_bounds_are_audited(kind: str, place_: Place) -> None:
    with auditing() as audit:
        both_sides(place_, kind, replace(OPTIONS, branching="upb", strategy=PLANED))
    assert audit.claims > 100


@PLACES
def test_verdicts_as_the_paper_has_them(place_: Place) -> None:
    both_sides(place_, "conv", replace(Options.of("paper", timeout=60.0), quick_attack=WEAK))


def in_another_process(act: Callable[..., Any]) -> Callable[..., Any]:
    """As there, cuDNN is on when it begins."""

    def acting(*args: Any) -> Any:
        with torch.backends.cudnn.flags(enabled=True):
            return act(*args)

    return acting


@PLACES
@pytest.mark.parametrize("branching", ["upb", "input"])
def test_pieces(branching: str, place_: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Travelled:
        remote = False

        def open(self, setup: worker.Setup) -> object:
            return Inline().open(lambda: in_another_process(in_another_process(pickle.loads(pickle.dumps(setup)))()))

    monkeypatch.setattr(worker, "choose", lambda **_: Travelled())
    at_once = replace(ALONE, batch=2, alone=0.0, alone_batches=1)
    both_sides(place_, "fc", replace(OPTIONS, strategy=at_once, workers=2, branching=branching))


@PLACES
@pytest.mark.parametrize("branching", ["upb", "input", "refined"])
def test_proofs(branching: str, place_: Place, tmp_path: Path) -> None:
    refined, question = branching == "refined", problem("wide", 0, 1e-2)
    with place_() as device:
        done = prove(
            tmp_path,
            *question,
            "auto" if refined else branching,
            replace(REFINED, input_limit=-1) if refined else ALONE,
            device=device,
        )
    assert done.verdict.status == "unsat"
    assert check(*done.files).valid


@PLACES
@pytest.mark.parametrize("branching", ["auto", "upb"])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "sign"])
def test_other_activations(name: str, branching: str, place_: Place, rng: np.random.Generator) -> None:
    case = Case.drawn(rng, ROWS[name])
    with place_() as device:
        assert case.ask(-1e-2, branching=branching, timeout=60.0, device=device).status == "unsat"


@PLACES
@pytest.mark.parametrize("norm", ["1", "2"])
def test_balls(norm: str, place_: Place, rng: np.random.Generator) -> None:
    network = random_fc(rng, (4, 8, 8, 3))
    centre = rng.uniform(-0.5, 0.5, size=4)
    label = int(network.forward(torch.from_numpy(centre)[None]).argmax())
    given, statuses = model(network), []
    with place_() as device:
        for eps in ("1/20", "1/5", "2"):
            question = Robustness(centre, label, eps, norm=norm, low=-3.0, high=3.0)
            statuses.append(verify(given, question, replace(OPTIONS, device=device)).status)
    assert (statuses[0], statuses[-1]) == ("unsat", "sat")


@PLACES
def test_linear_programs(place_: Place) -> None:
    network, box, row, least = exact("fc", 1)
    with place_() as device, plain_convolutions(device):
        there = network.tensors(device)
        form = fold_network(enclosure_over(there, [box]), LayerBounding(), lambda: None)
        assert form is not None
        made = Subject(there, form, specify(form, [region(box, row, 1e-4 - least)]))
        tree = Tree(ProgramSpace(made, Clock(None)), Queue(2**24), Clock(None), lambda _: None)
        tree.grow()
    assert tree.proved and tree.subproblems > 1


@PLACES
def test_a_queue_on_disk(place_: Place) -> None:
    with place_() as device:
        region_ = torch.arange(200, device=device)
        nodes = Nodes.roots(region_, {"signs": torch.ones(200, 3, dtype=torch.int8, device=device)})
        queue = Queue(1)
        queue.push(replace(nodes, bound=region_.float()))
        assert queue.spilled
        back = queue.pop(200)
        queue.close()
        assert back.region.device == back.state["signs"].device == region_.device
        assert torch.equal(back.region, region_)


# ---- bounds, attacks, data sets


@PLACES
@pytest.mark.parametrize("method", list(BOUNDS))
def test_bounds(method: str, place_: Place, rng: np.random.Generator) -> None:
    network = random_conv(rng)
    box = as_box(*(torch.from_numpy(end) for end in np.sort(rng.uniform(0, 0.3, (2, network.inputs)), axis=0)))
    given, domains = model(network), [box]
    if method in OVER_BALLS:
        domains.append(Ball.around(box.middle, Fraction(1, 10), "2"))  # type: ignore[arg-type]
    for domain in domains:
        here = surebound.bounds(given, domain, method=method)
        with place_() as device:
            there = surebound.bounds(given, domain, method=method, device=device)
            for a, b in zip(here.lower + here.upper, there.lower + there.upper, strict=True):
                assert b.device.type == device
                np.testing.assert_allclose(a, b.cpu(), rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(small_digits(), tmp_path_factory.mktemp("digits"))


@PLACES
@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("method", list(ATTACKS))
def test_attacks(method: str, norm: str, digits: Path, place_: Place) -> None:
    x, y = (part.numpy() for part in load_dataset("digits").test.take(range(12)))
    given, eps = load_model(digits), "1/10" if norm == "inf" else "1/2"
    here = attack_images(given, x, y, eps=eps, norm=norm, method=method)
    with place_() as device:
        there = attack_images(given.tensors(device), x, y, eps=eps, norm=norm, method=method)
    assert here.found.any()
    np.testing.assert_array_equal(here.found, there.found)
    np.testing.assert_array_equal(here.points, there.points)  # the same numbers are drawn on every device


@PLACES
@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_certifications(norm: str, digits: Path, place_: Place, tmp_path: Path) -> None:
    options: dict[str, Any] = {"eps": {"inf": "1/25", "2": "1/4", "1": "1/2"}[norm], "norm": norm}
    options |= {"images": range(12), "radius_search": norm == "inf"}
    if norm == "inf":
        options |= {"proofs": tmp_path / "proofs", "check_proofs": True}
    with place_() as device:
        done = surebound.certify(digits, "digits", store=tmp_path / "s.sqlite", device=device, **options)
    assert {row.outcome for row in done.rows} >= {"verified"}
    assert not {row.outcome for row in done.rows} & {"timeout", "unknown"}


@PLACES
def test_a_module_of_ones_own(place_: Place) -> None:
    """On the processor, as torch's default may be something else while it is read and replayed."""
    module, (x, y) = small_digits(), load_dataset("digits").test.take([0])
    with place_() as device:
        given = surebound.load(module, input_shape=(1, 8, 8))
        verdict = surebound.verify(given, Robustness(x.numpy(), int(y), "1/1000"), device=device)
    assert verdict.status == "unsat"


# ---- training


@PLACES
@pytest.mark.parametrize(
    "method", [m if m in ("ibp-r", "crown-ibp", "taps") else pytest.param(m, marks=pytest.mark.slow) for m in LOSSES]
)
def test_trainings(method: str, place_: Place, tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "method": method,
        "eps": 0.05,
        "data": {"name": "digits", "batch": 8, "first": 16},
        "network": {"name": "conv-small"},
        "schedule": {"epochs": 1, "stages": 4 if method == "colt" else 1},
        "validation": {"images": 8, "attack_steps": 2},
    }
    with place_() as device:
        for resume in (False, True):
            done = surebound.train(
                train_config(table | {"run": {"device": device}}), out=tmp_path / "run", resume=resume
            )
        assert {p.device.type for p in done.module.parameters()} == {"cpu"}
    assert load_model(tmp_path / "run" / "model.onnx").network.outputs == 10


# ---- which devices there are


@pytest.mark.parametrize("device", ["cuda:77", "meta", "mps", "nonsense", ""])
def test_a_device_that_cannot_be_used_is_a_usage_error(device: str) -> None:
    with pytest.raises(UsageError, match=f"the device '{device}'"):
        Options(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("name", ["verify", "certify", "attack"])
def test_commands_complain_before_any_work(name: str, tmp_path: Path, digits: Path) -> None:
    write_tiny(tmp_path)
    args = ["tiny.onnx", "holds.vnnlib"] if name == "verify" else [digits, "--dataset", "digits", "--eps", "0.1"]
    done = command(name, *args, "--device", "cuda", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert "the device 'cuda' cannot be used here" in sentence


def test_float64_that_is_emulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with elsewhere() as device:
        expect_exact(device)
        monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
        with pytest.raises(UsageError, match="emulates float64"):
            expect_exact(device)


def thinly(x: torch.Tensor) -> torch.Tensor:
    return x.float().double()


def flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, 0.0, x)


@pytest.mark.parametrize("changed", [thinly, flushed])
def test_products_in_less_than_float64_are_refused(
    changed: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    exactly = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: changed(exactly(a, b)))
    with elsewhere() as device, pytest.raises(UsageError, match="in less"):
        expect_exact(device)


def test_convolutions_are_plain_for_a_while() -> None:
    """cuDNN and NNPACK may compute them in ways that no error term has. (`elsewhere` sees that no bound uses cuDNN.)"""
    before = torch.backends.cudnn.enabled
    assert before and torch._C._get_nnpack_enabled()
    with plain_convolutions("cpu"):
        assert torch.backends.cudnn.enabled and not torch._C._get_nnpack_enabled()
    assert torch._C._get_nnpack_enabled()
    with plain_convolutions("cuda:1"), plain_convolutions("cuda"):
        assert not torch.backends.cudnn.enabled
    with pytest.raises(ValueError, match="while"), plain_convolutions("cuda"):
        raise ValueError("while it lasts")
    assert torch.backends.cudnn.enabled == before
