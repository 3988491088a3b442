"""`surebound attack`, as its users and their scripts see it, on a classifier whose robustness is known exactly."""

import inspect
import json
import re
from argparse import ArgumentParser
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classifiers import least_margins, nearest_means
from commands import surebound as run
from commands import write_tiny
from torch import nn

from surebound import __version__
from surebound.attacks.images import ImageAttack, attack_images
from surebound.cli import COMMANDS
from surebound.cli.arguments import eps, eps_text, indices
from surebound.cli.main import main
from surebound.evaluate import attacking
from surebound.train.export import export_onnx

DIGITS = ["--dataset", "digits"]
KEYS = {"standard", "robust", "images", "correct", "attacked", "method", "eps", "seed", "seconds", "version"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training output folder `run`, other networks, and things that are none."""
    place = tmp_path_factory.mktemp("attack")
    for name in ("run", "empty", "data"):
        (place / name).mkdir()
    torch.manual_seed(0)
    export_onnx(nearest_means(), (1, 8, 8), place / "run" / "model.onnx")
    export_onnx(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), (8, 8, 3), place / "wide.onnx")
    export_onnx(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8), place / "three.onnx")
    export_onnx(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (4, 4, 4), place / "cube.onnx")
    export_onnx(nn.Sequential(nn.Linear(64, 10)), (64,), place / "flat.onnx")
    (place / "text.onnx").write_text("this is not a network\n")
    write_tiny(place)
    return place


@pytest.mark.slow
def test_accuracies_and_json(folder: Path, tmp_path: Path) -> None:
    clean, least = (least_margins(nearest_means(), radius) for radius in (0.0, 1 / 20))
    assert np.abs(np.concatenate([clean, least])).min() > 1e-6
    correct, robust = int((clean > 0).sum()), int((least > 0).sum())
    assert 300 < correct < 350 and 150 < robust < correct - 20
    report = tmp_path / "report.json"
    done = run("attack", "run", *DIGITS, "--eps", "1/20", "--json", report, "--seed", 3, "--quiet", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"standard  {100 * correct / 360:.1f} %  ({correct} of 360)"
    assert lines[1] == f"robust    {100 * robust / 360:.1f} %  ({robust} of 360, pgd, eps 0.05)"
    assert re.fullmatch(r"seconds   \d+\.\d", lines[2]) and len(lines) == 3
    record = json.loads(report.read_text())
    assert set(record) >= KEYS
    assert (record["images"], record["correct"], record["method"], record["seed"]) == (360, correct, "pgd", 3)
    assert (record["standard"], record["robust"]) == (correct / 360, robust / 360)
    assert record["attacked"] == np.flatnonzero((clean > 0) & (least <= 0)).tolist()
    assert (record["eps"], record["version"], record["interrupted"]) == ("0.05", __version__, False)


@pytest.mark.slow
def test_workers_come_to_the_same(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = []
    for options in (["--threads", "1"], ["--workers", "2"]):
        report = tmp_path / "report.json"
        arguments = ["attack", str(folder / "run"), *DIGITS, "--eps", "0.05", "--json", str(report), *options]
        assert main([*arguments, "--steps", "3", "--first", "170", "--quiet"]) == 0
        records.append(json.loads(report.read_text()))
    assert capsys.readouterr().err == ""
    assert len(records[0]["attacked"]) > 5
    for name in ("images", "correct", "attacked"):
        assert records[0][name] == records[1][name]


@pytest.mark.parametrize("method", ["pgd", "mi-fgsm"])
def test_some_images(method: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean, least = (least_margins(nearest_means(), radius) for radius in (0.0, 0.05))
    chosen = [350, 7, 0, *np.flatnonzero((clean > 0) & (least <= 0))[:2].tolist()]
    report = tmp_path / "report.json"
    model = str(folder / "run" / "model.onnx")
    arguments = ["attack", model, *DIGITS, "--eps", "0.05", "--method", method, "--threads", "1", "--json", str(report)]
    assert main([*arguments, "--indices", ",".join(map(str, chosen))]) == 0
    assert json.loads(report.read_text())["attacked"] == [i for i in chosen if clean[i] > 0 >= least[i]]
    assert main([*arguments, "--first", "30", "--quiet"]) == 0
    record = json.loads(report.read_text())
    assert (record["images"], record["robust"]) == (30, int((least[:30] > 0).sum()) / 30)
    assert capsys.readouterr().err == ""


def test_a_network_on_flat_pixels_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", str(folder / "flat.onnx"), *DIGITS, "--eps", "0", "--first", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[1:] == lines[1].replace(", pgd, eps 0)", ")").split()[1:]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["nosuch.onnx", *DIGITS], "there is no such file; expected an ONNX file, or the output folder"),
        (
            ["empty", *DIGITS],
            "the folder 'empty' has no model.onnx; expected an ONNX file, or the folder of a training",
        ),
        (["text.onnx", *DIGITS], "'text.onnx' is not an ONNX file"),
        (["run", "--dataset", "svhn"], "unknown data set 'svhn'; expected one of: cifar10, mnist, digits"),
        (["run", "--dataset", "mnist", "--data-dir", "data"], "data set 'mnist' is not in 'data'"),
        (["run", "--dataset", "mnist", "--data-dir", "nowhere"], "data set 'mnist' is not in 'nowhere'"),
        (["run", *DIGITS, "--first", "361"], "--first 361: 'digits' has 360 test images; expected at most that many"),
        (["run", *DIGITS, "--indices", "1,360"], "image 360 of 'digits', which has 360 test images; expected indices"),
        (["wide.onnx", *DIGITS], "'wide.onnx' has inputs of shape 8 x 8 x 3 and 10 outputs; expected 1 x 8 x 8 and 10"),
        (["three.onnx", *DIGITS], "has inputs of shape 1 x 8 x 8 and 3 outputs; expected 1 x 8 x 8 and 10 for the im"),
        (["cube.onnx", *DIGITS], "has inputs of shape 4 x 4 x 4 and 10 outputs; expected 1 x 8 x 8 and 10"),
        (["tiny.onnx", *DIGITS], "has inputs of shape 2 and 2 outputs; expected"),
        (["run", *DIGITS, "--json", "no/where"], "--json 'no/where': expected a file name in an existing"),
        (["run", *DIGITS, "--json", "run/model.onnx"], "it would overwrite 'run/model.onnx', which is read"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, args: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SUREBOUND_DATA", str(folder / "data"))
    monkeypatch.setenv("HOME", str(folder))
    assert main(["attack", *args, "--eps", "0.1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and complaint in err and err.startswith("surebound: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--eps", ["abc", "-0.1", "1/0", "2e6", "nan", "inf", "1e999999999", "", "1/2/3", "²", "1_0/255"]),
        ("--indices", ["a", "1,,2", "1,1", "-1", "1.5", ""]),
        ("--first", ["0", "-3", "many", "2.0"]),
        ("--steps", ["0", "x"]),
        ("--method", ["fgsm"]),
        ("--fir", ["3"]),  # no abbreviations
    ],
)
def test_bad_options(option: str, values: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for value in values:
        with pytest.raises(SystemExit) as caught:
            main(["attack", "run", *DIGITS, *(["--eps", "0.1"] if option != "--eps" else []), f"{option}={value}"])
        out, err = capsys.readouterr()
        assert caught.value.code == 2 and out == ""
        assert option in err and value in err and err.count("\n") == 1


def test_a_radius_is_at_most_one_pixel_by_pixel(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    for value in ("1.01", "256/255"):
        assert main(["attack", str(folder / "run"), *DIGITS, "--eps", value]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"--eps {value}: expected a number from 0 to 1" in err and err.count("\n") == 1


def test_what_is_missing_or_excluded(capsys: pytest.CaptureFixture[str]) -> None:
    for args, complaint in (
        (["run", *DIGITS], "--eps"),
        (["run", "--eps", "0.1"], "--dataset"),
        (["run", *DIGITS, "--eps", "0.1", "--first", "3", "--indices", "1"], "not allowed with"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["attack", *args])
        assert caught.value.code == 2 and complaint in capsys.readouterr().err


@pytest.mark.parametrize("finished", [0, 50])
def test_an_interrupt_keeps_what_is_known(
    finished: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = 0

    def interrupted(model: Any, x: Any, y: Any, **options: Any) -> ImageAttack:
        nonlocal done
        if done == finished:
            raise KeyboardInterrupt
        done += len(x)
        return attack_images(model, x, y, **options)

    monkeypatch.setattr(attacking, "attack_images", interrupted)
    report = tmp_path / "report.json"
    assert main(["attack", str(folder / "run"), *DIGITS, "--eps", "0.05", "--json", str(report)]) == 130
    out, err = capsys.readouterr()
    if finished == 0:
        assert (out, err) == ("", "surebound: interrupted\n") and not report.exists()
        return
    assert err == "surebound: interrupted after 50 of 360 images\n"
    correct = int((least_margins(nearest_means(), 0.0)[:50] > 0).sum())
    assert out.startswith(f"standard  {2 * correct:.1f} %  ({correct} of 50)\n")
    record = json.loads(report.read_text())
    assert (record["images"], record["correct"], record["interrupted"]) == (50, correct, True)


def test_radii_are_exact() -> None:
    for text, value in {"2/255": Fraction(2, 255), "0.1": Fraction(1, 10), "0.5/255": Fraction(1, 510), "1": 1}.items():
        assert eps(text) == value
    for text in ("8/255", "0.1", "0.003", "1/3", "1/510", "0", "1", "1e-12", "0.30000000000000004"):
        assert eps(eps_text(eps(text))) == eps(text)
    assert [eps_text(eps(text)) for text in ("8/255", "3/255", "0.10")] == ["8/255", "3/255", "0.1"]
    assert indices("3,1,2") == (3, 1, 2)


def test_defaults_are_those_of_python() -> None:
    parser = ArgumentParser()
    COMMANDS["attack"].configure(parser)
    chosen = vars(parser.parse_args(["m", "--dataset", "d", "--eps", "0"]))
    parameters = inspect.signature(attack_images).parameters
    for name in ("method", "steps", "restarts", "targets", "seed"):
        assert chosen[name] == parameters[name].default


def test_mnist(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = str(shared / "models" / "colt_mnist_0.1.onnx"), str(shared / "data")
    cheap = ["--first", "9", "--steps", "5", "--restarts", "1", "--targets", "1"]
    assert main(["attack", model, "--dataset", "mnist", "--data-dir", data, "--eps", "0.1", *cheap]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["standard  100.0 %  (9 of 9)", "robust     88.9 %  (8 of 9, pgd, eps 0.1)"]
