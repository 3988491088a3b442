"""The loop: exact resumption after a kill, the same weights from several processes, and what it writes."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import environment
from torch import nn
from trainings import TWO, command, same, weights, write_config

from surebound.data import load_dataset
from surebound.data.own import dataset_from_tensors
from surebound.errors import NetworkError, TrainingError, UsageError
from surebound.network.architectures import Normalise
from surebound.train.checkpoint import Checkpoint, load, save
from surebound.train.config import TrainConfig, read_config, train_config
from surebound.train.folder import Folder
from surebound.train.run import TrainResult, run

pytestmark = pytest.mark.slow

TABLE = {
    "method": "ibp-r",
    "eps": 0.05,
    "data": {"name": "digits", "batch": 40, "first": 200},
    "network": {"name": "fc-small"},
    "schedule": {"epochs": 4, "mixing": 2, "inflation": 1.5},
    "optimiser": {"lr": 0.05, "decay": 0.8},
    "validation": {"every": 2, "images": 50, "attack_steps": 3},
    "run": {"checkpoint_every": 0.0},
}


def config(**changes: object) -> TrainConfig:
    return train_config(TABLE | changes)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The metrics without the time they took."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records(folder)]


class _Stop(Exception):
    """Thrown from a progress report, in place of a kill."""


def train_until(stop: int, settings: TrainConfig, out: Path, **options: object) -> None:
    def report(progress: object) -> None:
        if progress.step == stop:  # type: ignore[attr-defined]
            raise _Stop

    with pytest.raises(_Stop):
        run(settings, out, on_progress=report, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [1, 5, 7, 19])
def test_resuming_after_any_step_changes_nothing(tmp_path: Path, stop: int) -> None:
    settings = config()
    run(settings, tmp_path / "whole")
    train_until(stop, settings, tmp_path / "parts")
    result = run(settings, tmp_path / "parts", resume=True)
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "parts")
    assert result.validation is not None and result.validation.images == 50


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_resuming_keeps_adam_s_moments(tmp_path: Path, name: str) -> None:
    settings = config(optimiser={"name": name, "lr": 0.01, "weight_decay": 0.01, "clip": 1.0})
    run(settings, tmp_path / "whole")
    train_until(8, settings, tmp_path / "parts")
    run(settings, tmp_path / "parts", resume=True)
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_resuming_keeps_stages_and_batch_norms(tmp_path: Path) -> None:
    def module() -> nn.Sequential:
        torch.manual_seed(0)
        head = [nn.Linear(36, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10)]
        body = [
            nn.Conv2d(1, 4, 4, 2, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        ]
        return nn.Sequential(Normalise((0.3,), (0.4,)), *body, nn.Flatten(), *head)

    settings = config(schedule={"epochs": 2, "mixing": 1, "stages": 2, "freeze": True, "inflation": [1.5, 1.2]})
    first = run(settings, tmp_path / "whole", module=module())
    train_until(13, settings, tmp_path / "parts", module=module())
    run(settings, tmp_path / "parts", module=module(), resume=True)
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert isinstance(first, TrainResult) and not first.module.training


def test_stages_freeze_the_layers_before_them(tmp_path: Path) -> None:
    settings = config(schedule={"epochs": 1, "stages": 2, "freeze": True})
    snapshots: dict[int, dict[str, torch.Tensor]] = {}
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

    def report(progress: object) -> None:
        snapshots[progress.step] = {k: v.clone() for k, v in module.state_dict().items()}  # type: ignore[attr-defined]

    run(settings, tmp_path / "run", module=module, on_progress=report)
    assert torch.equal(snapshots[5]["1.weight"], snapshots[10]["1.weight"])
    assert not torch.equal(snapshots[5]["3.weight"], snapshots[10]["3.weight"])
    assert not torch.equal(snapshots[1]["1.weight"], snapshots[5]["1.weight"])


def test_kill_nine_and_resume_is_bitwise_the_same(tmp_path: Path) -> None:
    """The command itself, killed three times in the middle of epochs."""
    write_config(tmp_path, epochs=10)
    subprocess.run([sys.executable, *command(tmp_path / "whole", "--quiet")], check=True, env=environment())
    parts, checkpoint = tmp_path / "parts", tmp_path / "parts" / "checkpoint.safetensors"
    kills = 0
    for _ in range(3):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen([sys.executable, *command(parts, "--quiet", "--resume")], env=environment())
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(0.07)  # a few steps further
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 1
    assert not (parts / "weights.safetensors").exists() or kills < 3
    subprocess.run([sys.executable, *command(parts, "--quiet", "--resume")], check=True, env=environment())
    assert same(tmp_path / "whole", parts)
    assert (tmp_path / "whole" / "model.onnx").read_bytes() == (parts / "model.onnx").read_bytes()


PARALLEL = """
import os
import sys
from pathlib import Path
import torch
from torch import nn
from surebound.network.architectures import Normalise
from surebound.train.config import train_config
from surebound.train.run import run

torch.set_num_threads(1)
method, out = sys.argv[1:]
torch.manual_seed(0)
body = [nn.Conv2d(1, 6, 4, 2, 1), nn.BatchNorm2d(6), nn.ReLU()]
module = nn.Sequential(Normalise((0.3,), (0.4,)), *body, nn.Flatten(), nn.Linear(96, 20), nn.BatchNorm1d(20), nn.ReLU(),
                       nn.Linear(20, 10))
table = {"method": method, "eps": 0.05, "data": {"name": "digits", "batch": 60, "first": 240, "augment": False},
         "schedule": {"epochs": 3, "mixing": 2, "inflation": 1.2}, "optimiser": {"lr": 0.05},
         "validation": {"every": 0, "images": 20}}
run(train_config(table), Path(out), module=module)
os._exit(0)  # as the command does: tearing gloo's threads down may abort
"""


@pytest.mark.parametrize("method", ["ibp-r", "ibp-shi"])
def test_two_processes_give_the_weights_of_one(tmp_path: Path, method: str) -> None:
    """Through torchrun and gloo, with batch norms; ibp-shi has regularisers over the whole batch."""
    script = tmp_path / "parallel.py"
    script.write_text(PARALLEL)
    subprocess.run([sys.executable, script, method, tmp_path / "one"], check=True, env=environment())
    traced = environment(PYTHONFAULTHANDLER="1")  # a process that aborts says where
    done = subprocess.run(
        [*TWO, script, method, tmp_path / "two"],
        env=traced,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=2e-4, atol=2e-5)


def test_the_command_runs_under_torchrun(tmp_path: Path) -> None:
    write_config(tmp_path, epochs=2)
    done = subprocess.run(
        [*TWO, *command(tmp_path / "run")],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote") == 1  # only the first process speaks
    assert (tmp_path / "run" / "model.onnx").is_file()


def test_a_batch_that_does_not_divide_is_an_error() -> None:
    from surebound.train.parallel import World

    assert World(1, 2).share(10) == slice(5, 10)
    with pytest.raises(UsageError, match="a batch of 9 does not divide into 2 processes"):
        World(0, 2).share(9)


def test_output_folder(tmp_path: Path) -> None:
    result = run(config(), tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        "config.toml", "metrics.jsonl", "checkpoint.safetensors", "weights.safetensors", "model.onnx", "curves.png"
    }  # fmt: skip
    found = records(tmp_path / "run")
    assert [r["epoch"] for r in found if r["kind"] == "epoch"] == [1, 2, 3, 4]
    assert [r["epoch"] for r in found if r["kind"] == "validation"] == [0, 2, 4]
    assert found[1]["eps"] == pytest.approx(0.05 * 1.5 * 4 / 10)  # the last step of 5 in the first of 2 ramp epochs
    assert found[-1]["standard"] == result.validation.standard  # type: ignore[union-attr]
    stored = weights(tmp_path / "run")
    assert all(torch.equal(stored[k], v) for k, v in result.module.state_dict().items())


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    settings = config(schedule={"epochs": 1})
    run(settings, tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a run; expected a new folder, or --resume"):
        run(settings, tmp_path / "run")
    with pytest.raises(UsageError, match=r"another configuration \(it differs in schedule.epochs\)"):
        run(config(schedule={"epochs": 2}), tmp_path / "run", resume=True)
    again = run(settings, tmp_path / "run", resume=True)  # already over: nothing changes
    assert again.validation is not None


def test_resume_without_a_checkpoint_begins(tmp_path: Path) -> None:
    settings = config(schedule={"epochs": 1})
    folder = Folder(tmp_path / "run", settings)
    folder.begin()
    folder.release()
    run(settings, tmp_path / "run", resume=True)
    run(settings, tmp_path / "fresh", resume=True)
    assert same(tmp_path / "run", tmp_path / "fresh")


def test_the_loss_must_stay_finite(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) at step \d+ .*a lower optimiser.lr"):
        run(config(method="standard", optimiser={"lr": 1e30}), tmp_path / "run")


def test_seeds_and_augmentation_matter(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(config(seed=seed, schedule={"epochs": 1}), tmp_path / name)
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")


def test_own_data_and_network(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    x, y = digits.train.take(range(120))
    own = dataset_from_tensors(train=(x[:100], y[:100]), test=(x[100:], y[100:]), name="own")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    settings = config(method="standard", data={"name": "own", "batch": 20}, schedule={"epochs": 30}, optimiser={})
    result = run(settings, tmp_path / "run", dataset=own, module=module)
    assert result.module is module
    right = (module(x[:100]).argmax(1) == y[:100]).float().mean()
    assert right > 0.9


def test_an_own_network_is_tried_out_first(tmp_path: Path) -> None:
    no_flatten = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Linear(256, 10))
    with pytest.raises(NetworkError, match=r"\(Linear\) of module Sequential: a matrix of shape \[10, 256\] cannot"):
        run(config(), tmp_path / "run", module=no_flatten)
    few = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 7))
    with pytest.raises(NetworkError, match=r"returns \[1, 7\] for a batch of 1; expected a tensor of shape \[1, 10\]"):
        run(config(), tmp_path / "run", module=few)
    assert not (tmp_path / "run").exists()


def test_an_own_network_is_not_mistaken_for_a_named_one(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    run(config(schedule={"epochs": 1}), tmp_path / "run", module=module)
    written = read_config(tmp_path / "run" / "config.toml")
    assert written.network.name == "own"
    with pytest.raises(UsageError, match=r"network\.name is 'own', for a module of your own"):
        run(written, tmp_path / "again")


def test_an_interrupt_from_the_listener_is_kept(tmp_path: Path) -> None:
    settings = config(run={"checkpoint_every": 1e6})
    run(settings, tmp_path / "whole")

    def report(progress: Any) -> None:
        if progress.step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "parts", on_progress=report)
    steps = []
    run(settings, tmp_path / "parts", resume=True, on_progress=lambda progress: steps.append(progress.step))
    assert steps[0] == 9
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_failed_at_once_does_not_block_its_folder(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        run(config(method="standard", optimiser={"lr": 1e30}, run={}), tmp_path / "run")
    run(config(method="standard", schedule={"epochs": 1}), tmp_path / "run")
    assert [r["epoch"] for r in records(tmp_path / "run") if r["kind"] == "epoch"] == [1]


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.device is 'nonsense', which cannot be used here"):
        run(config(run={"device": "nonsense"}), tmp_path / "run")


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "negative step": ({"step": -3}, "has -3 as its step; expected a whole number from 0 up"),
    "step in words": ({"step": "seven"}, "has 'seven' as its step; expected a whole number"),
    "half a step": ({"step": 7.0}, "has 7.0 as its step; expected a whole number"),
    "true": ({"step": True}, "has True as its step; expected a whole number"),
    "no step": ({"step": None}, "has None as its step; expected a whole number"),
    "nothing done": ({"step": 0}, "has step 0; expected one from 1 to 20, the run's last"),
    "later than the last": ({"step": 10**12}, f"has step {10**12}; expected one from 1 to 20, the run's last"),
    "stage": ({"stage": 99}, "has stage 99; expected 0, in which step 7 ends"),
    "negative stage": ({"stage": -1}, "has -1 as its stage; expected a whole number"),
    "no optimiser": ({"optimiser": {}}, r"has an optimiser of \[\] parameters; expected \[\d+\]"),
    "an optimiser in words": ({"optimiser": "adam"}, "has 'adam' as its optimiser; expected a table"),
    "groups": ({"optimiser.param_groups": 3}, r"has an optimiser of \[\] parameters"),
    "groups in words": ({"optimiser.param_groups": ["a"]}, r"has an optimiser of \[\] parameters"),
    "group without parameters": ({"optimiser.param_groups": [{"lr": 0.1}]}, r"has an optimiser of \[0\] parameters"),
    "rate": ({"lr": float("nan")}, "has nan as a learning rate; expected a positive number"),
    "rate in words": ({"lr": "fast"}, "has 'fast' as a learning rate; expected a positive number"),
    "no state": ({"optimiser.state": {}}, "has {} as its optimiser's state; expected one for each parameter"),
    "state": ({"optimiser.state": [1]}, r"has \[1\] as its optimiser's state; expected one for each parameter"),
    "parameter": ({"optimiser.state": {99: {}}}, "has a state of parameter 99; expected parameters from 0 to"),
    "a parameter in words": (
        {"optimiser.state": {"a": {}}},
        "has a state of parameter 'a'; expected parameters",
    ),
    "entry": ({"optimiser.state": {0: 3}}, "the optimiser's state of parameter 0 of .* holds nothing; expected"),
    "names": ({"optimiser.state": {0: {"speed": 1.0}}}, "of parameter 0 of .* holds speed; expected momentum_buffer"),
    "a number": (
        {"optimiser.state": {0: {"momentum_buffer": 1.0}}},
        "'momentum_buffer' .* is 1.0; expected a tensor",
    ),
    "a scalar": (
        {"optimiser.state": {0: {"momentum_buffer": torch.zeros(())}}},
        r"'momentum_buffer' of parameter 0 of .* of shape \[\]; expected torch.float32 of shape",
    ),
    "meta": ({"meta": 3}, "has 3 as its meta; expected a table"),
    "no tally": ({"meta": {}}, "has None as its tally; expected seconds, and sums with their counts"),
    "empty tally": ({"meta.tally": {}}, "has {} as its tally; expected seconds"),
    "seconds": ({"meta.tally": {"seconds": -1.0, "sums": {}}}, "has .* as its tally; expected seconds"),
    "sums": ({"meta.tally": {"seconds": 1.0, "sums": [1]}}, "has .* as its tally; expected seconds"),
    "sum": ({"meta.tally": {"seconds": 1.0, "sums": {"loss": [1.0]}}}, "has .* as its tally; expected seconds"),
    "count": ({"meta.tally": {"seconds": 1.0, "sums": {"loss": [1.0, "2"]}}}, "has .* as its tally; expected"),
    "other keys": ({"meta.tally": {"seconds": 1.0, "sums": {}, "x": 1}}, "has .* as its tally; expected seconds"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps that was stopped after its 7th."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    train_until(8, config(), out)
    return out


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_checkpoint_is_one_sentence_and_nothing_changes(case: str, stopped: Path, tmp_path: Path) -> None:
    changes, complaint = MALFORMED[case]
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    path = out / "checkpoint.safetensors"
    state = vars(load(path)).copy()
    assert (state["step"], state["stage"]) == (7, 0)
    for name, value in changes.items():
        place, _, key = name.rpartition(".")
        if name == "lr":
            state["optimiser"]["param_groups"][0]["lr"] = value
        elif place:
            state[place][key] = value
        else:
            state[name] = value
    save(path, Checkpoint(**state))
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(UsageError, match=f"checkpoint.* {complaint}" if complaint.startswith("ha") else complaint):
        run(config(), out, resume=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_damaged_metrics_are_one_sentence_on_resuming(tmp_path: Path) -> None:
    settings = config(schedule={"epochs": 2})
    train_until(7, settings, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    line = len(whole.splitlines()) + 1
    for damage in (b"\xff\xfe\n", b"3\n", b'{"kind": "epoch", "epoch": 1}\n'):
        path.write_bytes(whole + damage)
        with pytest.raises(TrainingError, match=rf"line {line} of '.*metrics\.jsonl' "):
            run(settings, tmp_path / "run", resume=True)
    path.write_bytes(whole + b'{"kind": "epo')  # a kill
    run(settings, tmp_path / "run", resume=True)
    assert [r["epoch"] for r in records(tmp_path / "run") if r["kind"] == "epoch"] == [1, 2]


def test_data_of_one_class_is_refused_before_training(tmp_path: Path) -> None:
    x, _ = load_dataset("digits").train.take(range(40))
    labels = torch.zeros(40, dtype=torch.int64)
    own = dataset_from_tensors(train=(x, labels), test=(x, labels), name="own")
    for method in ("cap", "ibp-r"):
        with pytest.raises(UsageError, match="data set 'own' has 1 class; a classifier needs at least two classes"):
            run(config(method=method), tmp_path / "run", dataset=own)
    assert not (tmp_path / "run").exists()


def test_a_run_that_made_no_step_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    settings = config(method="taps", loss={"classifier_layers": 9})
    with pytest.raises(UsageError, match="classifier_layers is 9"):
        run(settings, tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "config.toml").write_text("# mine")
    with pytest.raises(UsageError, match="classifier_layers is 9"):
        run(settings, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]
    assert (tmp_path / "config.toml").read_text() == "# mine"


FAILS_AT_THE_END = """
import os
import sys
from pathlib import Path
from surebound.errors import SureboundError, UsageError
from surebound.train.config import read_config
from surebound.train.folder import Folder
from surebound.train.run import run

def finish(*_):
    raise UsageError("the disk is full")

Folder.finish = finish
try:
    run(read_config("digits-ibp-r", ["data.first=100", "schedule.epochs=1", "schedule.mixing=0"]), Path(sys.argv[1]))
except SureboundError as error:
    os.write(1, f"{error}\\n".encode())  # at once, so that the lines of two processes do not mix
os._exit(0)  # as the command does: tearing gloo's threads down may abort
"""


def test_all_processes_wait_for_the_first_to_finish(tmp_path: Path) -> None:
    """Also where it fails: then each of them ends with one sentence."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS_AT_THE_END)
    done = subprocess.run(
        [*TWO, script, tmp_path / "run"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["the disk is full", "the first process could not go on with this run"]


def test_one_process_in_a_folder(tmp_path: Path) -> None:
    """A folder that is being trained in is left alone; afterwards it is free."""
    config = read_config("digits-standard-cpu", ["schedule.epochs=1", "data.first=100"])

    def meddle(_: object) -> None:
        with pytest.raises(UsageError, match="another process is training"):
            run(config, tmp_path / "run", resume=True)

    run(config, tmp_path / "run", on_progress=meddle)
    run(config, tmp_path / "run", resume=True)
