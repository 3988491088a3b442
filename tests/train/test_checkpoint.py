"""A run that stops and continues is the run that never stopped; damaged files are one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import CLASSES, SHAPE, tiny_chain
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from surebound.errors import MissingFileError, UsageError
from surebound.train.checkpoint import (
    Checkpoint,
    _checksum,
    load,
    restore_optimiser,
    restore_weights,
    save,
    save_weights,
)
from surebound.train.learner import Learner

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMISERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1 / 3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "groups": lambda p: torch.optim.SGD([{"params": p[:3], "lr": 0.02}, {"params": p[3:]}], lr=0.01, momentum=0.5),
}


def _steps(chain: Learner, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.rand(8, *SHAPE, generator=generator)
        y = torch.randint(0, CLASSES, (8,), generator=generator)
        for group in optimiser.param_groups:
            group["lr"] *= 0.97
        optimiser.zero_grad()
        nn.functional.cross_entropy(chain.layers(x).clean_logits(x), y).backward()
        optimiser.step()


def _fresh(make: Make, seed: int = 0) -> tuple[Learner, torch.optim.Optimizer]:
    chain = tiny_chain(seed=seed, norm=True, dtype=torch.float32)
    return chain, make(chain.parameters())


def _checkpoint(chain: Learner, optimiser: torch.optim.Optimizer, **meta: Any) -> Checkpoint:
    return Checkpoint(
        weights=chain.module.state_dict(), optimiser=optimiser.state_dict(), step=5, stage=1, meta=dict(meta)
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, Tensor) else []


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_continuing_is_exact(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    chain, optimiser = _fresh(make)
    _steps(chain, optimiser, range(5))
    save(path, _checkpoint(chain, optimiser, config="1234", means={"steps": 2, "sums": {"loss": 0.1 + 0.2}}))
    _steps(chain, optimiser, range(5, 12))

    found = load(path)
    assert (found.step, found.stage) == (5, 1)
    assert found.meta == {"config": "1234", "means": {"steps": 2, "sums": {"loss": 0.1 + 0.2}}}
    other, second = _fresh(make, seed=1)
    addresses = [p.data_ptr() for p in other.module.parameters()]
    restore_weights(other.module, found.weights)
    restore_optimiser(second, found.optimiser)
    assert addresses == [p.data_ptr() for p in other.module.parameters()]
    _steps(other, second, range(5, 12))
    for name, t in chain.module.state_dict().items():
        mine = other.module.state_dict()[name]
        assert torch.equal(mine, t) and mine.stride() == t.stride(), name
    theirs, ours = optimiser.state_dict(), second.state_dict()
    assert theirs["param_groups"] == ours["param_groups"]
    pairs = list(zip(_tensors(theirs["state"]), _tensors(ours["state"]), strict=True))
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)
    assert any(not a.is_contiguous() for a, _ in pairs) == (make is not OPTIMISERS["sgd"])


def test_everything_comes_back_with_its_type(tmp_path: Path) -> None:
    path = tmp_path / "c"
    shared = torch.arange(6.0).reshape(2, 3)
    state = {
        "state": {3: {"step": torch.tensor(7.0), "none": None, "half": torch.ones(2, dtype=torch.bfloat16)}},
        "param_groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "params": [0, 1], "flag": True, "big": 2**70}],
        "extra": {"turned": shared.T, "same": shared, "empty": torch.empty(0), "inf": float("-inf"), "text": "λ"},
    }
    save(path, Checkpoint(weights={"a.b": shared[:, 1]}, optimiser=state, step=0, stage=0, meta={}))
    found = load(path)
    assert repr(found.optimiser) == repr(state)
    assert found.weights["a.b"].tolist() == [1.0, 4.0]
    one = path.read_bytes()
    save(path, found)
    assert path.read_bytes() == one


def test_the_old_file_survives_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.safetensors"
    chain, optimiser = _fresh(OPTIMISERS["momentum"])
    save(path, _checkpoint(chain, optimiser, which="old"))
    before = path.read_bytes()
    seen = []

    def dies(source: Path, target: Path) -> None:
        seen.append((source.parent == target.parent, source.read_bytes() != before))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    _steps(chain, optimiser, range(2))
    with pytest.raises(KeyboardInterrupt):
        save(path, _checkpoint(chain, optimiser, which="new"))
    assert seen == [(True, True)]  # the new file was complete, in the same folder
    assert path.read_bytes() == before and load(path).meta == {"which": "old"}
    monkeypatch.undo()
    save(path, _checkpoint(chain, optimiser, which="new"))
    assert load(path).meta == {"which": "new"} and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    chain, optimiser = _fresh(OPTIMISERS["momentum"])
    _steps(chain, optimiser, range(1))
    save(path, _checkpoint(chain, optimiser, config="x" * 50))
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    at = whole.index(b"x" * 50)
    damaged = {
        "empty": b"",
        "text": b"this is not a checkpoint\n" * 20,
        "cut": whole[:-1],
        "cut in the header": whole[:100],
        "longer": whole + b"\0",
        "a number": whole[: header + 10] + bytes([whole[header + 10] ^ 1]) + whole[header + 11 :],
        "last": whole[:-1] + bytes([whole[-1] ^ 0x80]),
        "metadata": whole[:at] + b"y" + whole[at + 1 :],
        "quote": whole[:at] + b'"' + whole[at + 1 :],
    }
    for name, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"checkpoint\.safetensors' .*; expected") as caught:
            load(path)
        assert "\n" not in str(caught.value), name
    with pytest.raises(MissingFileError, match=r"nosuch' \(no such file or directory"):
        load(tmp_path / "nosuch")
    with pytest.raises(UsageError, match=r"cannot write '.*absent/file' \(.*no such file"):
        save(tmp_path / "absent" / "file", _checkpoint(chain, optimiser))
    with pytest.raises(UsageError):
        load(tmp_path)


def _of_format(path: Path, name: str) -> None:
    """Make a checkpoint one of another format, and whole."""
    with safe_open(path, "pt") as file:
        record = json.loads(json.loads(file.metadata()["surebound"])["record"])
    text, tensors = json.dumps({**record, "format": name}), load_file(path)
    save_file(tensors, path, {"surebound": json.dumps({"checksum": _checksum(text, tensors), "record": text})})


def test_other_files_and_formats(tmp_path: Path) -> None:
    chain, optimiser = _fresh(OPTIMISERS["adam"])
    save_weights(tmp_path / "w", chain.module)
    with pytest.raises(UsageError, match=r"/w' is not a checkpoint of surebound"):
        load(tmp_path / "w")
    save(tmp_path / "c", _checkpoint(chain, optimiser))
    _of_format(tmp_path / "c", "surebound checkpoint 9")
    with pytest.raises(UsageError, match="has the format 'surebound checkpoint 9'; expected 'surebound checkpoint 1'"):
        load(tmp_path / "c")


def test_weights_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    chain, other = tiny_chain(norm=True), tiny_chain(norm=True, seed=1)
    save_weights(path, chain.module)
    assert set(load_file(path)) == set(chain.module.state_dict())
    restore_weights(other.module, load_file(path))
    for name, t in other.module.state_dict().items():
        assert torch.equal(t, chain.module.state_dict()[name])
        assert t.ndim != 4 or t.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.pop(-1), r"does not fit the network: only the file has '8\.(weight|bias)'"),
        (lambda m: m.append(nn.Linear(3, 3)), r"does not fit the network: only the network has '9\.weight'"),
        (lambda m: m.append(m.pop(-1).float()), r"is torch\.float64 of shape .*; expected torch\.float32"),
        (lambda m: m.append(nn.Linear(m.pop(-1).in_features, 4)), r"of shape \[3, 8\]; expected .* of shape \[4, 8\]"),
    ],
)
def test_weights_of_another_network(change: Callable[[nn.Sequential], Any], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(path, tiny_chain().module)
    module = tiny_chain(seed=1).module
    change(module)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with pytest.raises(UsageError, match=r"weights\.safetensors'.*" + complaint):
        restore_weights(module, load_file(path), source=f"'{path}'")
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_optimisers_of_another_network() -> None:
    chain, optimiser = _fresh(OPTIMISERS["momentum"])
    _steps(chain, optimiser, range(1))
    state = optimiser.state_dict()
    fewer = torch.optim.SGD(chain.parameters(start=1), lr=0.1, momentum=0.9)
    with pytest.raises(UsageError, match=r"the checkpoint has an optimiser of \[14\] parameters; expected \[10\]"):
        restore_optimiser(fewer, state)
    turned = torch.optim.SGD(chain.parameters()[::-1], lr=0.1, momentum=0.9)
    with pytest.raises(UsageError, match=r"'momentum_buffer' of parameter 0 of run/c .*; expected"):
        restore_optimiser(turned, state, source="run/c")


def test_metadata_must_be_json(tmp_path: Path) -> None:
    chain, optimiser = _fresh(OPTIMISERS["momentum"])
    with pytest.raises(TypeError):
        save(tmp_path / "c", _checkpoint(chain, optimiser, what=object()))
    assert list(tmp_path.iterdir()) == []
