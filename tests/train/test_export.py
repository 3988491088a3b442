"""Exported networks compute what the module computes, in onnxruntime and after loading."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from branched import GRAPHS, graph
from chains import CLASSES, SHAPE, tiny_chain
from onnx import numpy_helper
from safetensors.torch import load_file
from torch import nn

import surebound
import surebound.train.onnx_calls
from surebound.errors import NetworkError, UnsupportedOpError, UsageError
from surebound.load.replay import replay
from surebound.network.architectures import ARCHITECTURES, architecture
from surebound.train.checkpoint import restore_weights, save_weights
from surebound.train.export import export_onnx
from surebound.train.onnx_calls import Emit


def _trained(*, norm: bool, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A network in training mode whose batch norms have seen some data."""
    chain = tiny_chain(norm=norm, dtype=dtype)
    x = torch.rand(50, *SHAPE, generator=torch.Generator().manual_seed(3)).to(dtype)
    for _ in range(10):
        chain.layers(x)
    return chain.module.train()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [False, True])
def test_file_and_module_agree(norm: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    module = _trained(norm=norm, dtype=dtype)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    path = tmp_path / "model.onnx"
    export_onnx(module, SHAPE, path, labels=("a", "b", "c"))
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]

    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [p.key for p in model.metadata_props] == ["labels"] and model.metadata_props[0].value == '["a", "b", "c"]'
    x = np.random.default_rng(1).random((7, *SHAPE), dtype=np.float32)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [(i.name, i.shape) for i in session.get_inputs()] == [("x", ["N", *SHAPE])]
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("logits", ["N", CLASSES])]
    (found,) = session.run(None, {"x": x})
    loaded = surebound.load(path)
    exact = loaded.network.forward(torch.from_numpy(x).double()).numpy()
    assert module.training and all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x).to(dtype)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(exact, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(loaded.replay(x.reshape(7, -1)), found)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_loads(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = architecture(name, in_shape=(1, 8, 8), classes=10, mean=(0.3,), std=(0.4,))
    export_onnx(module, (1, 8, 8), tmp_path / "model.onnx")
    network = surebound.load(tmp_path / "model.onnx").network
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(network.forward(x.double()).float(), module.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_kind_of_graph_is_written_and_read(name: str, tmp_path: Path) -> None:
    """Onnxruntime agrees with the module before the file appears; here, what is verified does, too."""
    learner = graph(name, dtype=torch.float32)
    x = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(3))
    for _ in range(5):
        learner.layers(x)
    export_onnx(learner.module, SHAPE, tmp_path / "model.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"), full_check=True)
    network = surebound.load(tmp_path / "model.onnx").network
    torch.testing.assert_close(network.forward(x.double()).float(), learner.module.eval()(x), rtol=1e-4, atol=1e-5)


def test_weights_are_stored_exactly_and_bytes_repeat(tmp_path: Path) -> None:
    module = _trained(norm=True)  # its convolutions are channels-last in memory
    for name in ("one.onnx", "two.onnx"):
        export_onnx(module, SHAPE, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    stored = {w.name: numpy_helper.to_array(w) for w in onnx.load(tmp_path / "one.onnx").graph.initializer}
    state = {name: t.numpy() for name, t in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert set(stored) == set(state)
    for name, weight in state.items():
        written = weight[None] if name in ("0.mean", "0.std") else weight  # with four axes, see below
        np.testing.assert_array_equal(stored[name], written, strict=True)


def test_normalisation_has_the_axes_of_a_batch(tmp_path: Path) -> None:
    """α,β-CROWN stops at constants of three axes. Files from before, which have three, are read as they were."""
    module = architecture("conv-2-255", in_shape=(3, 32, 32), classes=10, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    path, before = tmp_path / "model.onnx", tmp_path / "before.onnx"
    export_onnx(module, (3, 32, 32), path)
    model = onnx.load(path)
    stored = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    assert stored["0.mean"].shape == stored["0.std"].shape == (1, 3, 1, 1)
    assert stored["0.mean"].ravel().tolist() == np.float32([0.1, 0.2, 0.3]).tolist()
    assert stored["0.std"].ravel().tolist() == np.float32([0.4, 0.5, 0.6]).tolist()

    for index, weight in enumerate(model.graph.initializer):
        if weight.name in ("0.mean", "0.std"):
            model.graph.initializer[index].CopyFrom(numpy_helper.from_array(stored[weight.name][0], weight.name))
    onnx.save(model, before)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    now, then = (surebound.load(file).network.forward(x) for file in (path, before))
    assert torch.equal(now, then)
    weights = tmp_path / "weights.safetensors"
    save_weights(weights, module)  # of three axes, as in every training folder
    again = architecture("conv-2-255", in_shape=(3, 32, 32), classes=10, mean=(0.0,) * 3, std=(1.0,) * 3)
    restore_weights(again, load_file(weights), source="weights")
    assert again[0].mean.shape == (3, 1, 1) and torch.equal(again[0].std, module[0].std)


def test_layers_without_bias_and_norms_without_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    same = nn.Conv2d(2, 2, (2, 3), padding="same")
    conv = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False)
    norm = nn.BatchNorm2d(4, affine=False, eps=1e-2)
    nn.init.uniform_(norm.running_mean, -0.5, 0.5)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    module = nn.Sequential(same, conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(48, 3, bias=False))
    export_onnx(module, SHAPE, tmp_path / "model.onnx")
    x = torch.rand(4, *SHAPE)
    loaded = surebound.load(tmp_path / "model.onnx").network.forward(x.double())
    torch.testing.assert_close(loaded.float(), module.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "extra",
    [
        nn.Softmax(1),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.ConstantPad2d(1, 0.5),
        nn.Hardtanh(-0.5, 0.5),
        nn.ConvTranspose2d(2, 2, 2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_the_tables_lack_is_written_by_the_exporter_of_torch(extra: nn.Module, tmp_path: Path) -> None:
    module, path = nn.Sequential(extra, nn.Flatten()), tmp_path / "model.onnx"
    export_onnx(module, SHAPE, path, labels=["a", "b"])
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        np.testing.assert_allclose(replay(path)(x.flatten(1).numpy()), module(x).numpy(), rtol=1e-4, atol=1e-5)
    assert onnx.load(path).metadata_props[0].key == "labels"
    once = path.read_bytes()
    export_onnx(module, SHAPE, path, labels=["a", "b"])
    assert path.read_bytes() == once


def test_what_neither_can_write_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=r"'0' \(BatchNorm2d.* cannot be written to ONNX; expected .*Norm"):
        export_onnx(
            nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten()), SHAPE, tmp_path / "model.onnx"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"the old file")
    module = _trained(norm=False)
    monkeypatch.setattr(surebound.train.onnx_calls, "_affine", _swapped)
    with pytest.raises(NetworkError, match=r"model\.onnx' differs from the trained one by .* expected at most"):
        export_onnx(module, SHAPE, path)
    monkeypatch.undo()
    with torch.no_grad():
        module[-1].bias[0] = torch.nan
    with pytest.raises(NetworkError, match="computes NaN or infinity"):
        export_onnx(module, SHAPE, path)
    assert path.read_bytes() == b"the old file" and len(list(tmp_path.iterdir())) == 1


def _swapped(e: Emit, weight: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{e.name}.weight": weight, f"{e.name}.bias": bias.flip(0)}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write '.*model\.onnx' \(no such file or directory\)"):
        export_onnx(_trained(norm=False), SHAPE, tmp_path / "absent" / "model.onnx")
