"""`surebound train`, in this process; `tests/train/test_loop.py` runs it in others."""

from pathlib import Path

import pytest
import torch

from surebound.cli.main import main
from surebound.train.config import presets

SMALL = ["--set", "data.first=100", "--set", "schedule.epochs=2", "--set", "schedule.mixing=1"]
MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
SHORT = [*SMALL, "--set", "schedule.warmup=0", "--set", "optimiser.milestones=[]"]
CAP = ["--set", "method=cap", "--set", "schedule.kappa=[1, 1]"]
ONE = ["--set", "data.batch=1", "--set", "validation.images=1", "--set", "validation.attack_steps=1"]
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
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == presets()
    assert len({line.index(line.split()[1], len(line.split()[0])) for line in lines}) == 1  # aligned
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told["cifar10-2-255-ibp-r"] == "IBP-R, cifar10, eps 2/255, conv-2-255, 800 epochs"
    assert told["cifar10-2-255-colt"] == "COLT, cifar10, eps 2/255, conv-2-255, 4 × 200 epochs"
    assert told["cifar10-2-255-colt-original"] == "COLT by medians, cifar10, eps 2/255, conv-2-255, 4 × 200 epochs"
    assert told["cifar10-8-255-colt-day"] == "COLT, cifar10, eps 8/255, conv-8-255, 3 × 10 epochs"
    assert told["cifar10-8-255-ibp-r-mask"] == "IBP-R with a mask, cifar10, eps 8/255, conv-8-255, 800 epochs"
    assert told["mnist-0.1-relu-stability"].startswith("ReLU stability, mnist, eps 0.1, ")
    assert {"cifar10-2-255-ibp-r", "cifar10-8-255-ibp-r-mask", "cifar10-2-255-colt", "mnist-0.1-ibp-r-cpu"} <= {*names}


@pytest.mark.slow
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


@pytest.mark.slow
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
        (["--out", "", *TRAIN[1:]], "--out is ''; expected the name of the folder to write"),
        (
            ["--out", "OUT", *TRAIN[1:], "--set", f"validation.batch={10**20}"],
            f"validation.batch is {10**20}; expected",
        ),
        (["--out", "OUT", *TRAIN[1:], "--set", f"data.batch={'9' * 5000}"], "…; expected an integer"),
        (["--out", "OUT", *TRAIN[1:], "--set", f"method=0x{'f' * 5000}"], "method is a number too long to print"),
        (["--out", "OUT", *TRAIN[1:], "--set", f"loss=0x{'f' * 5000}"], "loss is a number too long to print; expected"),
        (
            ["--out", "OUT", *TRAIN[1:], *CAP, "--set", f"loss={{ projections = {10**18} }}"],
            f"loss.projections is {10**18}; expected at most 10000",
        ),
        (
            ["--out", "OUT", *TRAIN[1:], "--set", "optimiser.weight_decay=1e300"],
            "optimiser.weight_decay is 1e+300; expected a number from -3.40282e+38 to 3.40282e+38",
        ),
        (["--out", "OUT", *TRAIN[1:], "--set", "schedule.inflation=1e39"], "schedule.inflation is 1e+39; expected"),
        (
            ["--out", "OUT", *TRAIN[1:], "--set", "optimiser.milestones=[1, 2]"],
            "optimiser.milestones holds 2, which is never reached; expected epochs of a stage, from 0 to 1",
        ),
        (["--out", "OUT", *TRAIN[1:], "--set", "run.device=meta"], "run.device is 'meta', which cannot be used here"),
        (["--out", "OUT", *TRAIN[1:], "--set", "run.device=hpu"], "run.device is 'hpu', which cannot be used here"),
        (["--out", "OUT", *TRAIN[1:], "--set", "run.device="], "run.device is '', which cannot be used here"),
        (
            ["--out", "OUT", "--preset", "digits-taps-cpu", *SHORT, "--set", "loss.classifier_layers=9"],
            "taps: classifier_layers is 9; expected from 1 to",
        ),
        (
            ["--out", "OUT", "--preset", "digits-ibp-shi", *SHORT, "--set", "network.name=cnn7", *ONE],
            "a batch norm got one value per channel; expected a batch of more than one sample",
        ),
        (["--out", "OUT"], "train needs --preset NAME or --config FILE.toml"),
        (["--out", "OUT", "--preset", "mnist-0.1-ibpr"], "unknown preset 'mnist-0.1-ibpr'; did you mean mnist-0.1-ibp"),
        (["--out", "OUT", "--resume"], "to resume; expected a folder that train wrote"),
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


def test_running_out_of_memory_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surebound.train.cauchy.Projections.draw", lambda *_: torch.empty(2**60))
    out = tmp_path / "out"
    assert "training ran out of memory" in failure(capsys, *TRAIN, *CAP, "--set", "loss={}", "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "RANK and WORLD_SIZE are set, but MASTER_ADDR and MASTER_PORT not; expected",
        ),
        ({"RANK": "abc", "WORLD_SIZE": "2", **MASTER}, "RANK is 'abc' and WORLD_SIZE '2'; expected whole numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MASTER}, "RANK is '2' and WORLD_SIZE '2'; expected whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "", **MASTER}, "but WORLD_SIZE not"),
        ({"RANK": "0", "WORLD_SIZE": "1", **MASTER, "MASTER_PORT": "http"}, "MASTER_PORT is 'http'; expected a port"),
    ],
)
def test_a_broken_environment_of_torchrun(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    sentence: str,
) -> None:
    for name in ("RANK", "WORLD_SIZE", *MASTER):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert sentence in failure(capsys, *TRAIN, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_rank_alone_is_no_group_of_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "1")
    assert main([*TRAIN, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "wrote" in capsys.readouterr().out


def test_missing_data_says_where_to_put_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUREBOUND_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = failure(capsys, "train", "--preset", "mnist-0.1-ibp-r-cpu", "--out", str(tmp_path / "out"))
    assert "mnist" in text and "http" in text
