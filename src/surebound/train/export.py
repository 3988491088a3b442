"""Writes a trained network as an ONNX file, call by call, and runs the file before anyone relies on it."""

import json
import warnings
from collections.abc import Sequence
from copy import deepcopy
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.files import replacing
from surebound.load.replay import replay
from surebound.network.op import Shape
from surebound.train.onnx_calls import FUNCTIONS, MODULES, Emit
from surebound.train.read import traced

OPSET = 17
IR_VERSION = 8  # the oldest that allows this opset: what reads the file need not be new
_INPUT, _OUTPUT = "x", "logits"
_POINTS = 8
_TOLERANCE = 1e-4  # of the largest logit; float32 arithmetic in another order stays far below


def export_onnx(module: nn.Module, in_shape: Shape, path: str | Path, *, labels: Sequence[str] = ()) -> None:
    """Write the network in evaluation mode, in float32, with input "x" (N, *in_shape) and output "logits" (N, classes).

    The module stays as it is. The same weights make the same file, byte for byte. The file appears only after
    onnxruntime has computed the same logits from it as the module does. `labels` are kept in the file's metadata.
    """
    copy = deepcopy(module).cpu().float().eval()
    x = torch.from_numpy(np.random.default_rng(0).random((_POINTS, *in_shape), dtype=np.float32))
    with torch.no_grad():
        logits = copy(x)
    if not torch.isfinite(logits).all():
        raise NetworkError(f"the network for '{path}' computes NaN or infinity; expected finite logits")
    content = onnx_content(copy, in_shape, tuple(logits.shape[1:]), labels=labels)
    with replacing(path) as partial:
        partial.write_bytes(content)
        found = replay(partial)(x.flatten(1).numpy())
        _check(found, logits.flatten(1).numpy(), path)


def onnx_content(module: nn.Module, in_shape: Shape, out_shape: Shape, *, labels: Sequence[str] = ()) -> bytes:
    """The file of a module on the CPU in evaluation mode: by our tables, or by torch's exporter if they lack a call."""
    import onnx

    try:
        model = _Writer(module, in_shape).model(out_shape)
        onnx.checker.check_model(model, full_check=True)
    except (UnsupportedOpError, onnx.shape_inference.InferenceError) as refused:  # a matrix on several axes
        model = _by_torch(module, in_shape, refused)
    if labels:
        onnx.helper.set_model_props(model, {"labels": json.dumps(list(labels))})
    return bytes(model.SerializeToString(deterministic=True))


def _by_torch(module: nn.Module, in_shape: Shape, refused: Exception) -> Any:
    import onnx

    file = BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this exporter is the older one: the newer needs another package
            torch.onnx.export(
                module,
                (torch.zeros(1, *in_shape, device="cpu"),),
                file,  # type: ignore[arg-type]  # takes files, too
                dynamo=False,
                opset_version=OPSET,
                input_names=[_INPUT],
                output_names=[_OUTPUT],
                dynamic_axes={_INPUT: {0: "N"}, _OUTPUT: {0: "N"}},
            )
    except Exception as error:  # torch.onnx.errors and much else
        raise UnsupportedOpError(f"{refused} (nor by torch's exporter: {str(error).splitlines()[0]})") from error
    return onnx.load_from_string(file.getvalue())


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
    """Collects the nodes and weights of a graph from the trace of a module."""

    def __init__(self, module: nn.Module, in_shape: Shape) -> None:
        self._in_shape = in_shape
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._values: dict[fx.Node, Any] = {}  # names of tensors, or plain Python
        self._modules = dict(module.named_modules())
        self._names: dict[str, int] = {}
        trace = traced(module)
        ShapeProp(trace).propagate(torch.zeros(1, *in_shape, device="cpu"))
        for node in trace.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = _INPUT
            elif node.op == "get_attr":
                self._values[node] = attrgetter(str(node.target))(trace)
            elif node.op == "output":
                self._finish(fx.node.map_arg(node.args[0], lambda n: self._values[n]))
            else:
                self._values[node] = self._call(node)

    def _finish(self, value: Any) -> None:
        if not self._nodes or value == _INPUT or not isinstance(value, str):
            raise UnsupportedOpError("a network without layers; expected one that computes logits")
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    names[i] = _OUTPUT if name == value else name

    def model(self, out_shape: Shape) -> Any:
        """What a file holds."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self._nodes,
            "surebound",
            [helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["N", *self._in_shape])],
            [helper.make_tensor_value_info(_OUTPUT, TensorProto.FLOAT, ["N", *out_shape])],
            list(self._weights.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="surebound")
        model.ir_version = IR_VERSION
        return model

    def _call(self, node: fx.Node) -> Any:
        """The name of a call's result."""
        args = fx.node.map_arg(list(node.args), lambda n: self._values[n])
        kwargs = fx.node.map_arg(dict(node.kwargs), lambda n: self._values[n])
        if node.op == "call_module":
            module = self._modules[str(node.target)]
            emit, shown, place = MODULES.get(type(module)), str(module), f"module '{node.target}'"
            args, name = [module, *args], str(node.target)
        else:
            function = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            emit, shown, place = FUNCTIONS.get(function.rstrip("_")), function, f"node '{node.name}'"
            name = node.name
        self._names[name] = self._names.get(name, 0) + 1
        name = name if self._names[name] == 1 else f"{name}.{self._names[name]}"  # a module in another place
        try:
            result = None if emit is None else emit(Emit(name, _axes(node), self._add), *args, **kwargs)
        except TypeError as error:
            raise UnsupportedOpError(f"{place} ({shown}) cannot be written to ONNX: {error}") from error
        if result is None:
            known = ", ".join(sorted(m.__name__ for m in MODULES))
            raise UnsupportedOpError(
                f"{place} ({shown}) cannot be written to ONNX; expected {known} with options that ONNX has"
            )
        return result

    def _add(self, op: str, name: str, inputs: Sequence[str], weights: dict[str, Tensor], attributes: Any) -> str:
        """Append a node; the name of its output."""
        from onnx import helper, numpy_helper

        for key, weight in weights.items():
            self._weights.setdefault(key, numpy_helper.from_array(weight.detach().contiguous().numpy(), key))
        self._nodes.append(helper.make_node(op, [*inputs, *weights], [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"


def _axes(node: fx.Node) -> int:
    """Of a call's result; 0 where that is no tensor."""
    return len(getattr(node.meta.get("tensor_meta"), "shape", ()))
