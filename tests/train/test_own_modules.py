"""Modules of one's own: trained, exported, certified and proved, from Python alone."""

import gzip
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import surebound
from surebound.check import check
from surebound.data import load_dataset
from surebound.errors import UsageError

SHORT = ["data.first=400", "schedule.epochs=4", "schedule.mixing=2", "validation.images=50", "loss.attack.steps=2"]


class Net(nn.Module):
    """A strided stem, a residual block with a pool, and a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, 1, 1), nn.BatchNorm2d(6)
        self.first, self.second = nn.Conv2d(6, 6, 3, 1, 1), nn.Conv2d(6, 6, 3, 1, 1, bias=False)
        self.pool, self.last = nn.AvgPool2d(2), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.second(torch.relu(self.first(x))) + x)
        return self.last(self.pool(x).flatten(1))


def test_a_residual_network_from_training_to_a_checked_proof(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = surebound.train("digits-ibp-r", out=tmp_path / "run", module=Net(), settings=SHORT)
    assert isinstance(result.module, Net) and not result.module.training and result.validation is not None
    images, labels = load_dataset("digits").test.take(torch.arange(60))
    model = tmp_path / "run" / "model.onnx"
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(logits, result.module(images).numpy(), rtol=1e-3, atol=1e-4)
    right = np.flatnonzero(logits.argmax(1) == labels.numpy())
    assert len(right) > 20
    found = surebound.certify(
        tmp_path / "run",
        "digits",
        eps="1/500",
        store=tmp_path / "s.db",
        images=right[:2].tolist(),
        timeout=20,
        proofs=tmp_path / "proofs",
    )
    assert found.accuracies.verified == 1.0
    for i in right[:2]:
        text = gzip.decompress((tmp_path / "proofs" / f"image-{i}.vnnlib.gz").read_bytes())
        (tmp_path / "p.vnnlib").write_bytes(text)
        verdict = check(model, tmp_path / "p.vnnlib", tmp_path / "proofs" / f"image-{i}.proof")
        assert verdict.valid, verdict.reason


def test_a_network_without_a_cut_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.last = nn.Linear(64, 5), nn.Linear(64, 4), nn.Linear(9, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.last(torch.cat([self.left(x).relu(), self.right(x).relu()], 1))

    with pytest.raises(UsageError, match=r"schedule\.stages is \d, of which each freezes another block; expected at"):
        surebound.train("digits-colt", out=tmp_path / "run", module=Wide())
    with pytest.raises(UsageError, match="taps: no single tensor cuts the network in two"):
        surebound.train("digits-taps", out=tmp_path / "other", module=Wide(), settings=["data.first=100"])
    assert list(tmp_path.iterdir()) == []
