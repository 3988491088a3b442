"""Writes a trained network as an ONNX file, operation by operation, and runs the file before anyone relies on it."""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.files import replacing
from surebound.load.replay import replay
from surebound.network.architectures import Normalise
from surebound.network.op import Shape

OPSET = 17
IR_VERSION = 8  # the oldest that allows this opset: what reads the file need not be new
_INPUT, _OUTPUT = "x", "logits"
_POINTS = 8
_TOLERANCE = 1e-4  # of the largest logit; float32 arithmetic in another order stays far below

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def export_onnx(module: nn.Sequential, in_shape: Shape, path: str | Path, *, labels: Sequence[str] = ()) -> None:
    """Write the network in evaluation mode, in float32, with input "x" (N, *in_shape) and output "logits" (N, classes).

    The module stays as it is. The same weights make the same file, byte for byte. The file appears only after
    onnxruntime has computed the same logits from it as the module does. `labels` are kept in the file's metadata.
    """
    copy = deepcopy(module).cpu().float().eval()
    writer = _Writer(copy)
    x = torch.from_numpy(np.random.default_rng(0).random((_POINTS, *in_shape), dtype=np.float32))
    with torch.no_grad():
        logits = copy(x)
    if not torch.isfinite(logits).all():
        raise NetworkError(f"the network for '{path}' computes NaN or infinity; expected finite logits")
    content = writer.content(tuple(in_shape), tuple(logits.shape[1:]), labels)
    with replacing(path) as partial:
        partial.write_bytes(content)
        found = replay(partial)(x.flatten(1).numpy())
        _check(found, logits.flatten(1).numpy(), path)


def _check(found: NDArray[Any], expected: NDArray[Any], path: str | Path) -> None:
    tolerance = _TOLERANCE * float(np.abs(expected).max())
    difference = float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")
    if not difference <= tolerance:
        raise NetworkError(
            f"the network written for '{path}' differs from the trained one by {difference:.3g} in onnxruntime; "
            f"expected at most {tolerance:.3g}"
        )


@final
class _Writer:
    """Collects the nodes and weights of a graph."""

    def __init__(self, module: nn.Sequential) -> None:
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._value = _INPUT  # what the next node reads
        for name, child in module._modules.items():  # named_children() leaves out a module's second place
            assert child is not None
            self._module(name, child)
        if not self._nodes:
            raise UnsupportedOpError("a network without layers; expected a Sequential that ends in a Linear layer")
        self._nodes[-1].output[0] = _OUTPUT

    def content(self, in_shape: Shape, out_shape: Shape, labels: Sequence[str]) -> bytes:
        """The file."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self._nodes,
            "surebound",
            [helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["N", *in_shape])],
            [helper.make_tensor_value_info(_OUTPUT, TensorProto.FLOAT, ["N", *out_shape])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="surebound")
        model.ir_version = IR_VERSION
        if labels:
            helper.set_model_props(model, {"labels": json.dumps(list(labels))})
        return bytes(model.SerializeToString(deterministic=True))

    def _module(self, name: str, m: nn.Module) -> None:
        match m:
            case Normalise():
                # With an axis for the batch, like the input: α,β-CROWN asserts as many axes as that has.
                self._node("Sub", f"{name}.centred", {f"{name}.mean": m.mean[None]})
                self._node("Div", name, {f"{name}.std": m.std[None]})
            case nn.Conv2d() if m.padding_mode == "zeros" and not isinstance(m.padding, str):
                self._node(
                    "Conv",
                    name,
                    _affine(name, m),
                    kernel_shape=m.kernel_size,
                    strides=m.stride,
                    pads=[*m.padding, *m.padding],
                    dilations=m.dilation,
                    group=m.groups,
                )
            case nn.BatchNorm1d() | nn.BatchNorm2d() if m.running_mean is not None and m.running_var is not None:
                self._node("BatchNormalization", name, _norm(name, m), epsilon=m.eps)
            case nn.Linear():
                self._node("Gemm", name, _affine(name, m), transB=1)
            case nn.ReLU():
                self._node("Relu", name)
            case nn.Flatten() if (m.start_dim, m.end_dim) == (1, -1):
                self._node("Flatten", name, axis=1)
            case _:
                raise UnsupportedOpError(
                    f"module '{name}' ({m}) cannot be written to ONNX; expected Normalise, Conv2d with zero padding, "
                    "BatchNorm with running averages, ReLU, Flatten or Linear"
                )

    def _node(self, op: str, name: str, weights: dict[str, Tensor] | None = None, **attributes: Any) -> None:
        from onnx import helper, numpy_helper

        weights = weights or {}
        for key, weight in weights.items():
            self._weights.append(numpy_helper.from_array(weight.detach().contiguous().numpy(), key))
        self._nodes.append(helper.make_node(op, [self._value, *weights], [f"{name}.out"], name=name, **attributes))
        self._value = f"{name}.out"


def _affine(name: str, m: nn.Conv2d | nn.Linear) -> dict[str, Tensor]:
    return {f"{name}.weight": m.weight} | ({} if m.bias is None else {f"{name}.bias": m.bias})


def _norm(name: str, m: BatchNorm) -> dict[str, Tensor]:
    """Scale, shift, mean and variance, in the order of ONNX."""
    assert m.running_mean is not None and m.running_var is not None
    scale = m.weight if m.affine else torch.ones_like(m.running_mean)
    shift = m.bias if m.affine else torch.zeros_like(m.running_mean)
    weights = {"weight": scale, "bias": shift, "running_mean": m.running_mean, "running_var": m.running_var}
    return {f"{name}.{key}": weight for key, weight in weights.items()}
