"""The public interface: what is there, how it is called, what it raises, and that the documents say so."""

import inspect
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import ROOT, environment, write_tiny
from torch import nn

import surebound
from surebound import errors
from surebound.attacks import ATTACKS
from surebound.bounds import BOUNDS
from surebound.branching import CHOICES, RULES
from surebound.check import network as check_network
from surebound.cli import COMMANDS
from surebound.cli.main import build_parser
from surebound.data import DATASETS
from surebound.load.onnx_ops import SUPPORTED
from surebound.network.model import Model
from surebound.registry import Registry
from surebound.train import LOSSES

README, USAGE, SUPPORTS = ((ROOT / page).read_text() for page in ("README.md", "docs/commands.md", "docs/supported.md"))
DOCUMENTS = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example network."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    """The example network."""
    return surebound.load(tiny / "tiny.onnx")


# ---- frozen


def test_the_public_names_are_these() -> None:
    assert sorted(surebound.__all__) == [
        "Ball", "Box", "Counterexample", "Property", "Region", "Robustness", "SureboundError", "Verdict", "__version__",
        "bounds", "certify", "load", "train", "verify",
    ]  # fmt: skip
    assert all(hasattr(surebound, name) for name in surebound.__all__)


@pytest.mark.parametrize(
    ("name", "positional", "keywords"),
    [
        ("load", ["source"], {"input_shape": None}),
        (
            "train",
            ["config"],
            {
                "out": inspect.Parameter.empty,
                "settings": (),
                "dataset": None,
                "module": None,
                "data_dir": None,
                "resume": False,
                "on_progress": None,
            },
        ),
        (
            "verify",
            ["net", "problem"],
            {
                "timeout": None,
                "branching": "auto",
                "search": "default",
                "seed": 0,
                "memory": None,
                "early_stop": False,
                "workers": None,
                "cluster": None,
                "resources": None,
                "proof": False,
                "device": "cpu",
                "on_progress": None,
            },
        ),
        ("bounds", ["net", "box"], {"method": "alpha-crown", "device": "cpu"}),
        (
            "certify",
            ["model", "dataset"],
            {
                "eps": inspect.Parameter.empty,
                "norm": "inf",
                "store": inspect.Parameter.empty,
                "images": None,
                "timeout": 60.0,
                "branching": "auto",
                "search": "default",
                "attack": "mi-fgsm",
                "seed": 0,
                "early_stop": True,
                "radius_search": False,
                "workers": None,
                "cluster": None,
                "resources": None,
                "memory": None,
                "device": "cpu",
                "resume": False,
                "proofs": None,
                "check_proofs": False,
                "data_dir": None,
                "on_progress": None,
            },
        ),
    ],
)
def test_the_signatures_are_these(name: str, positional: list[str], keywords: dict[str, object]) -> None:
    parameters = inspect.signature(getattr(surebound, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == keywords
    assert all(p.annotation is not p.empty for p in parameters)


def test_the_fields_of_a_verdict_are_these() -> None:
    assert list(inspect.signature(surebound.Verdict).parameters) == [
        "status", "counterexample", "seconds", "seconds_by_phase", "subproblems", "lower_bound", "branching", "seed",
        "reason", "proof", "searched_by",
    ]  # fmt: skip


def test_packages_of_the_functions_names_can_be_imported() -> None:
    import surebound.bounds.layerwise
    import surebound.load.onnx
    import surebound.verify.search

    assert all(callable(f) for f in (surebound.load, surebound.verify, surebound.bounds))
    assert surebound.bounds.BOUNDS is BOUNDS and callable(surebound.load.onnx.load_onnx)


def test_completion_and_help_show_what_there_is() -> None:
    program = "import surebound; print(*dir(surebound))"
    command = [sys.executable, "-c", program]
    names = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout.split()
    assert set(surebound.__all__) <= set(names) and "import_module" not in names
    assert "\n\nload(source, *, input_shape=None)\n\nArgs:\n" in (surebound.load.__doc__ or "")
    assert surebound.verify.__doc__ is not None and ", timeout=None, branching='auto'," in surebound.verify.__doc__


def test_a_network_is_shown_in_a_line(tiny: Path, model: Model) -> None:
    assert repr(model) == f"Model('{tiny / 'tiny.onnx'}': 2 inputs, 2 outputs, {model.network.neurons} neurons)"


def test_importing_surebound_does_not_import_torch() -> None:
    program = "import sys, surebound; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=environment(), check=False).returncode == 0


# ---- documented


@pytest.mark.parametrize("registry", [BOUNDS, RULES, ATTACKS, LOSSES, DATASETS], ids=lambda registry: registry.kind)
def test_every_registered_name_is_documented(registry: Registry[object]) -> None:
    assert [name for name in registry if f"`{name}`" not in DOCUMENTS] == []


def test_the_readme_counts_the_methods_of_training() -> None:
    assert re.findall(r"(\d+) methods", README) == [str(len(LOSSES))] * 2


def test_what_is_supported_lists_every_operation() -> None:
    listed = SUPPORTS.partition("## Proofs")[0]
    assert [op for op in SUPPORTED if f"`{op}`" not in listed] == []


def test_what_is_supported_says_which_operations_have_proofs() -> None:
    have = set(check_network.OPERATIONS)
    lines = [line.split("|") for line in SUPPORTS.splitlines() if line.startswith("| ") and "has proofs" not in line]
    kinds = {cells[1].strip(): cells for cells in lines if len(cells) == 5}
    named = [kinds[kind] for kind in ("affine operations", "activations", "shapes", "others")]
    assert {op for cells in named for op in re.findall(r"`(\w+)`", cells[2])} == have
    assert {op for cells in named for op in re.findall(r"`(\w+)`", cells[3])} == {*SUPPORTED} - have


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    assert f"surebound {name} " in USAGE
    parser = ArgumentParser()
    COMMANDS[name].configure(parser)
    options = [o for action in parser._actions for o in action.option_strings if o not in ("-h", "--help")]
    assert [option for option in options if option not in USAGE] == []


def test_the_command_line_takes_every_branching() -> None:
    for name in CHOICES:
        args = build_parser().parse_args(["verify", "net.onnx", "p.vnnlib", "--branching", name])
        assert args.branching == name


# ---- errors


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": -1},
        {"timeout": "60"},
        {"timeout": float("nan")},
        {"seed": -1},
        {"seed": 2**70},
        {"memory": 0},
        {"memory": "2G"},
        {"branching": "best"},
    ],
)
def test_options_that_make_no_sense_are_usage_errors(model: Model, options: dict[str, Any]) -> None:
    problem = surebound.Robustness(np.full(model.network.inputs, 0.5), 0, 0.01)
    with pytest.raises(errors.UsageError):
        surebound.verify(model, problem, **options)


@pytest.mark.parametrize(
    "changes",
    [
        {"eps": None},
        {"eps": "much"},
        {"eps": 2},
        {"label": 1.0},
        {"label": "1"},
        {"label": 99},
        {"x": ["a"]},
        {"x": [300.0, 0.0]},
    ],
)
def test_robustness_that_makes_no_sense_is_a_usage_error(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"x": np.array([0.5, 0.5]), "label": 1, "eps": 0.1, **changes}
    with pytest.raises(errors.UsageError):
        surebound.Robustness(**arguments).to_property(3)


def test_arrays_of_any_kind_make_a_region() -> None:
    box = surebound.Box([0, 0], [1, 1])  # type: ignore[arg-type]
    region = surebound.Region(box=box, on_output=[[1, -1]], constant=[0], strict=np.zeros(1, dtype=bool))  # type: ignore[arg-type]
    assert region.on_output.dtype == np.float64
    with pytest.raises(errors.PropertyError):
        surebound.Region(box=box, on_output=np.eye(2), constant=np.zeros(1), strict=np.zeros(1, dtype=bool))


def test_all_errors_share_a_base() -> None:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(found) == 11 and all(issubclass(e, surebound.SureboundError) for e in found)


def test_files_that_are_not_there(tiny: Path) -> None:
    with pytest.raises(errors.MissingFileError, match=r"nosuch\.onnx"):
        surebound.load("nosuch.onnx")
    with pytest.raises(errors.MissingFileError, match=r"nosuch\.vnnlib"):
        surebound.verify(tiny / "tiny.onnx", "nosuch.vnnlib")


def test_arguments_that_make_no_sense(model: Model) -> None:
    box = (np.zeros(2), np.ones(2))
    with pytest.raises(errors.UsageError, match="unknown branching 'best'; expected one of: auto, upb"):
        surebound.verify(model, surebound.Robustness(np.zeros(2), 0, 0.1), branching="best")
    with pytest.raises(errors.UsageError, match="unknown bound 'magic'; expected one of: interval"):
        surebound.bounds(model, box, method="magic")
    with pytest.raises(errors.UsageError, match="needs input_shape"):
        surebound.load(nn.Linear(2, 2))
    with pytest.raises(errors.UsageError, match="3 numbers; expected a multiple of the 2 inputs"):
        surebound.bounds(model, (np.zeros(3), np.ones(3)))
    with pytest.raises(errors.UsageError, match="lower nowhere above upper"):
        surebound.bounds(model, (np.ones(2), np.zeros(2)))
    with pytest.raises(errors.UsageError, match="NaN"):
        surebound.bounds(model, (np.zeros(2), np.array([1.0, np.nan])))


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 4, 5, 3), (5, 12), (3, 20)])
def test_a_box_has_the_layout_of_the_input(shape: tuple[int, ...]) -> None:
    net = surebound.load(nn.Sequential(nn.Flatten(), nn.Linear(60, 2)), input_shape=(3, 4, 5))
    with pytest.raises(errors.UsageError, match=r"lower end has the shape .*; expected \(3, 4, 5\), with or without"):
        surebound.bounds(net, (np.zeros(shape), np.ones(shape)))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 3, 4, 5), (2, 3, 4, 5), (60,), (2, 60), (3, 1, 4, 5), (120,)])
def test_a_box_may_be_flat_or_several(shape: tuple[int, ...]) -> None:
    net = surebound.load(nn.Sequential(nn.Flatten(), nn.Linear(60, 2)), input_shape=(3, 4, 5))
    box = np.random.default_rng(0).random(shape)
    expected = net.network.forward(torch.from_numpy(box).reshape(-1, 3, 4, 5))
    found = surebound.bounds(net, (torch.from_numpy(box).requires_grad_(), box), method="interval")
    np.testing.assert_allclose(np.asarray(found.lower[-1]).reshape(-1, 2), expected.reshape(-1, 2), rtol=1e-9)


def test_complex_numbers_are_no_box(model: Model) -> None:
    with pytest.raises(errors.UsageError, match="the box's lower end is complex; expected real numbers"):
        surebound.bounds(model, (np.zeros(2) + 1j, np.ones(2)))
    with pytest.raises(errors.UsageError, match="the box's upper end is not an array of numbers"):
        surebound.bounds(model, (np.zeros(2), [[0], [1, 2]]))  # type: ignore[arg-type]


def test_an_image_that_changes_later_changes_no_problem() -> None:
    image = np.full(2, 0.5)
    problem = surebound.Robustness(image, 0, eps="1/10")
    image[:] = 0.0
    assert (problem.box().lower > 0.39).all()


def _certify(more: dict[str, Any], _: Model, out: Path) -> object:
    return surebound.certify("n.onnx", "digits", **{"eps": 0, "store": out, **more})


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda net, _: surebound.verify(net, None), "got a NoneType for a problem; expected a Robustness"),
        (lambda net, _: surebound.bounds(net, None), "got a NoneType for a box; expected a Box or Ball"),
        *(
            (partial(_certify, more), complaint)
            for more, complaint in (
                ({"proofs": ""}, "proofs is ''; expected the path of the folder"),
                ({"proofs": 5}, "proofs is 5; expected the path of the folder"),
                ({"store": "a\0b"}, r"store is 'a\\x00b'; expected the path"),
                ({"cluster": 5}, "cluster is 5; expected 'auto' or 'HOST:PORT'"),
                ({"device": 5}, "the device '5' is of a kind"),
                ({"early_stop": "no"}, "early_stop is 'no'; expected True or False"),
                ({"radius_search": 2}, "radius_search is 2; expected True or False"),
            )
        ),
        (lambda net, _: surebound.load(None), "got a NoneType; expected the path of an ONNX file, or a PyTorch"),
        (lambda net, _: surebound.load("tiny.onnx", input_shape=(2,)), "input_shape is for PyTorch modules"),
        (lambda net, _: surebound.load(nn.Flatten(), input_shape=(-1, 8, 8)), r"input_shape is \(-1, 8, 8\); expected"),
        (lambda net, _: surebound.load(nn.Flatten(), input_shape=[(8,), (0,)]), "input_shape is .* lengths from 1 up"),
        (lambda net, out: surebound.train(None, out=out), "got a NoneType for a configuration; expected the name"),
        (lambda net, out: surebound.train({}, out=out), "got a dict for a configuration"),
        (lambda net, out: surebound.train("digits-ibp", out=None), "out is None; expected the path of the folder"),
        (lambda net, out: surebound.train("digits-ibp", out=""), "out is ''; expected the path"),
        (
            lambda net, out: surebound.train("digits-ibp", out=out, dataset="mnist"),
            "got a str for a data set; expected",
        ),
        (lambda net, out: surebound.train("digits-ibp", out=out, settings="seed=3"), r"such as \['seed=3'\]"),
        (lambda net, out: surebound.certify("n.onnx", None, eps=0, store=out), "got a NoneType for a data set"),
        (lambda net, out: surebound.certify("n.onnx", "digits", eps=0, store=None), "store is None; expected the path"),
    ],
)
def test_arguments_of_another_kind(model: Model, tmp_path: Path, call: Callable[..., object], complaint: str) -> None:
    with pytest.raises(errors.UsageError, match=complaint):
        call(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("x", "label", "eps", "complaint"),
    [
        ([0.0, 0.0], 2, 0.1, "label 2 is not one of the network's 2 outputs"),
        ([0.0, 0.0], 0, "a/b", "eps must be a number"),
        ([0.0, 0.0], 0, -0.1, "eps must not be negative"),
        ([0.0, float("nan")], 0, 0.1, "NaN or infinite"),
        ([0.0, 0.0, 0.0], 0, 0.1, "over 3 inputs .* network has 2 inputs"),
    ],
)
def test_robustness_that_makes_no_sense(
    model: Model, x: list[float], label: int, eps: float | str, complaint: str
) -> None:
    with pytest.raises(surebound.SureboundError, match=complaint):
        surebound.verify(model, surebound.Robustness(np.array(x), label, eps))


# ---- the example of the README


def test_verify_and_bounds_on_the_example(tiny: Path, model: Model) -> None:
    assert surebound.verify(model, tiny / "holds.vnnlib").status == "unsat"
    found = surebound.verify(tiny / "tiny.onnx", tiny / "fails.vnnlib")
    assert found.status == "sat" and found.counterexample is not None
    assert np.abs(found.counterexample.x).max() <= 1 and found.counterexample.y[1] >= 0.9
    # y₁ = ||x₀| − |x₁|| ≥ y₀ = |x₀| + |x₁| + ¼ nowhere, so label 0 is robust at any radius
    verdict = surebound.verify(model, surebound.Robustness(np.array([0.5, 0.5]), label=0, eps="1/2"))
    assert verdict.status == "unsat"
    bounds = surebound.bounds(model, surebound.Box(-np.ones(2), np.ones(2)))
    assert bounds.lower[-1][0, 0] <= 0.25 and bounds.upper[-1][0, 0] >= 2.25


def test_a_module_and_its_verdict() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5)
        module[2].bias[0] = 1.0  # y₀ = y₁ + ½
    model = surebound.load(module, input_shape=(2,))
    assert surebound.verify(model, surebound.Robustness(np.full(2, 0.5), label=0, eps=0.1)).status == "unsat"
    assert surebound.verify(model, surebound.Robustness(np.full(2, 0.5), label=1, eps=0.1)).status == "sat"


def test_a_module_must_be_loaded_first() -> None:
    module = torch.nn.Linear(2, 2)
    for call in (lambda: surebound.verify(module, "p.vnnlib"), lambda: surebound.bounds(module, ([0, 0], [1, 1]))):  # type: ignore[arg-type]
        with pytest.raises(errors.UsageError, match=r"surebound\.load"):
            call()
