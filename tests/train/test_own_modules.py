"""Modules of one's own: trained, exported, certified and proved, from Python alone."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import surebound
from surebound.check import check
from surebound.data import load_dataset
from surebound.errors import NetworkError, SureboundError, UsageError

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


TINY = ["data.first=100", "schedule.epochs=2", "schedule.mixing=1", "validation.images=10", "loss.attack.steps=1"]


class Written(nn.Module):
    """Calls of many kinds: views by shape, operators in place, a clipped activation, a padded image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pad, self.mid = nn.Conv2d(1, 4, 3), nn.ZeroPad2d(1), nn.Conv2d(4, 4, 3, padding="same")
        self.last = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pad(torch.relu(self.stem(x)))
        y = self.mid(x).clamp(0.0, 6.0)
        y += x
        y *= 0.5
        return self.last(y.view(y.shape[0], -1))


def test_whatever_can_be_trained_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = surebound.train("digits-ibp-r", out=tmp_path / "run", module=Written(), settings=TINY)
    images, _ = load_dataset("digits").test.take(torch.arange(20))
    found = surebound.load(tmp_path / "run" / "model.onnx").network.forward(images.double())
    with torch.no_grad():
        np.testing.assert_allclose(found.numpy(), result.module(images).numpy(), rtol=1e-3, atol=1e-4)


def test_parameters_that_need_no_gradient_stay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    net[1].weight.requires_grad_(False)
    kept, trained = net[1].weight.clone(), net[3].weight.clone()
    result = surebound.train("digits-ibp-r", out=tmp_path / "run", module=net, settings=TINY)
    assert torch.equal(result.module[1].weight, kept) and not torch.equal(result.module[3].weight, trained)
    assert [p.requires_grad for p in result.module.parameters()] == [False, True, True, True]
    net.requires_grad_(False)
    with pytest.raises(UsageError, match="has no parameters to train; expected some whose requires_grad is True"):
        surebound.train("digits-ibp-r", out=tmp_path / "other", module=net, settings=TINY)
    assert not (tmp_path / "other").exists()


def test_a_norm_after_a_matrix_on_the_last_axis(tmp_path: Path) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Linear(6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(54, 10))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    result = surebound.train("digits-ibp-r", out=tmp_path / "run", module=net, settings=TINY)
    assert result.validation is not None


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + float(torch.rand(()))


class Returning(nn.Module):
    """Of a function of a small network's logits."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layers, self.function, self.runs = _sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), function, 0

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layers(x))


def _counted(m: Any, logits: Tensor) -> Tensor:
    m.runs += 1
    return logits + torch.relu(logits * m.runs - 1e6)


def _kept() -> nn.Module:
    module = _sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    module.last = module(torch.ones(1, 64))  # type: ignore[assignment]
    return module


def _expanded() -> nn.Module:
    module = _sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    module[1].weight = nn.Parameter(torch.randn(1, 64).expand(8, 64))
    return module


def _sequential(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *modules)


@pytest.mark.parametrize(
    ("module", "error", "complaint"),
    [
        (_sequential(nn.ReLU()), SureboundError, "expected"),
        (
            _sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).half(),
            NetworkError,
            r"parameter '1.weight' is of type float16; expected float32 \(module\.float\(\)\)",
        ),
        (_sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 10)), NetworkError, "has no shape yet"),
        (nn.Sequential, UsageError, r"the class Sequential; expected Sequential\(…\)"),
        (lambda x: x, UsageError, "a function; expected an nn.Module"),
        (
            Returning(lambda m, y: (y,)),
            NetworkError,
            r"returns a tuple for a batch of 1; expected a tensor of",
        ),
        (Returning(lambda m, y: y.squeeze()), NetworkError, r"returns \[10\] for a batch of 1; expected .* \[1, 10\]"),
        (Returning(_counted), NetworkError, "something else when it is run again"),
        (_kept(), NetworkError, "cannot be copied"),
        (
            _expanded(),
            NetworkError,
            r"parameter '1.weight' has numbers that share memory; expected",
        ),
        (
            _sequential(nn.utils.parametrizations.weight_norm(nn.Linear(64, 8)), nn.ReLU(), nn.Linear(8, 10)),
            NetworkError,
            r"module '1' \(ParametrizedLinear\) computes its parameters from others",
        ),
        (Random(), NetworkError, "something else when it is run again"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence_before_the_first_step(
    module: Any, error: type[SureboundError], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=complaint):
        surebound.train("digits-ibp-r", out=tmp_path / "run", module=module, settings=TINY)
    assert list(tmp_path.iterdir()) == []
