"""`surebound train`, in this process; `tests/test_train_loop.py` runs it in others."""

from pathlib import Path

import pytest

from surebound.cli.main import main
from surebound.train.config import presets

SMALL = ["--set", "data.first=100", "--set", "schedule.epochs=2", "--set", "schedule.mixing=1"]
TRAIN = ["train", "--preset", "digits-ibp-r", *SMALL]


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that must fail."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_lists_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert names == presets()
    assert {"cifar10-2-255-ibp-r", "cifar10-8-255-ibp-r-mask", "cifar10-2-255-colt", "mnist-0.1-ibp-r-cpu"} <= {*names}


def test_trains_resumes_and_is_attacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs" / "digits"
    assert main([*TRAIN, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.startswith("standard ") and "by intervals" in first and "eps 1/20" in first
    assert second.startswith(f"wrote {out} in ")
    before = (out / "weights.safetensors").read_bytes()
    assert main(["train", "--out", str(out), "--resume", "--quiet"]) == 0  # the folder knows its configuration
    assert (out / "weights.safetensors").read_bytes() == before
    capsys.readouterr()
    assert main(["attack", str(out), "--dataset", "digits", "--eps", "0.05", "--first", "20", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("standard")


def test_a_run_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main([*TRAIN, "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert "already holds a run" in failure(capsys, *TRAIN, "--out", out)
    other = failure(capsys, *TRAIN, "--set", "seed=3", "--out", out, "--resume")
    assert "it differs in seed" in other


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "train needs --out"),
        (["--out", "OUT"], "train needs --preset NAME or --config FILE.toml"),
        (["--out", "OUT", "--preset", "mnist-0.1-ibpr"], "unknown preset 'mnist-0.1-ibpr'; did you mean mnist-0.1-ibp"),
        (["--out", "OUT", "--resume"], "cannot read the config file"),
        (["--out", "OUT", "--config", "none.toml"], "cannot read the config file 'none.toml'"),
        (["--out", "OUT", *TRAIN[1:], "--set", "loss.rho=1"], "unknown key 'loss.rho'"),
        (["--out", "OUT", *TRAIN[1:], "--set", "schedule.epochs=-1"], "schedule.epochs is -1; expected at least 1"),
        (["--out", "OUT", *TRAIN[1:], "--set", "method=magic"], "unknown training method 'magic'"),
        (["--out", "OUT", *TRAIN[1:], "--set", "data.name=imagenet"], "unknown data set 'imagenet'"),
        (
            ["--out", "OUT", *TRAIN[1:], "--set", "data.batch=2000"],
            "data.batch is 2000; expected at most the 100 images",
        ),
        (["--out", "OUT", *TRAIN[1:], "--set", "network.name=vgg"], "unknown architecture 'vgg'"),
        (["--out", "OUT", *TRAIN[1:], "--set", "eps=2"], "eps is 2; expected a radius from 0 to 1"),
        (
            ["--out", "OUT", *TRAIN[1:], "--set", "run.device=cuda:7"],
            "run.device is 'cuda:7', which cannot be used here",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "out"
    assert sentence in failure(capsys, "train", *(str(out) if a == "OUT" else a for a in arguments))
    assert not out.exists()


def test_missing_data_says_where_to_put_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUREBOUND_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = failure(capsys, "train", "--preset", "mnist-0.1-ibp-r-cpu", "--out", str(tmp_path / "out"))
    assert "mnist" in text and "http" in text
