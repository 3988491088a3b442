"""Reads a module for training: a network with a place for every operation that has parameters.

The module is traced by torch.fx, as for verification (`surebound.load.torch`), and everything without parameters
becomes what it is there: pooling, slopes and sums of branches are written once. Modules and calls with parameters
become places (`surebound.train.places`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.algebra import Algebra, Data
from surebound.load.torch import Interpreter
from surebound.load.torch_calls import CALLS, parameters
from surebound.load.torch_ops import FUNCTIONS
from surebound.load.torch_trace import expect_module, trace
from surebound.network.architectures import Normalise
from surebound.network.conv import Conv
from surebound.network.graph import Network
from surebound.network.linear import Linear, Scale, Shift
from surebound.network.op import Shape
from surebound.network.shape import Pick, Reshape
from surebound.network.transposed import ConvTranspose
from surebound.train.places import BatchNorm, Place

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_WITH_WEIGHTS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "linear")  # that may be given parameters


def expect_numbers(module: nn.Module) -> None:
    """Refuse what is no module, and parameters that bounds cannot be computed with."""
    expect_module(module)
    for name, parameter in module.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float64):
            kind = str(parameter.dtype).removeprefix("torch.")
            raise NetworkError(f"parameter '{name}' is of type {kind}; expected float32 (module.float())")
        steps = zip(parameter.stride(), parameter.shape, strict=True)
        if parameter.requires_grad and any(step == 0 and length > 1 for step, length in steps):
            raise NetworkError(f"parameter '{name}' has numbers that share memory; expected parameter.clone()")
    for name, m in module.named_modules():
        if parametrize.is_parametrized(m):
            raise UnsupportedOpError(
                f"module '{name}' ({type(m).__name__}) computes its parameters from others; expected some of its own "
                "(torch.nn.utils.parametrize.remove_parametrizations)"
            )


def traced(module: nn.Module) -> fx.GraphModule:
    """The calls that a module makes in evaluation mode; it shares the parameters."""
    expect_module(module)
    modes = {m: m.training for m in module.modules()}
    try:
        return trace(module.eval(), Normalise)
    finally:
        for m, mode in modes.items():
            m.training = mode


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """What a module is to training."""

    network: Network  # over normalised pixels; the output is that of a Linear
    normalise: Normalise | None


def read(module: nn.Module, in_shape: Shape) -> Reading:
    """The network of a module on samples of a shape, or an error that names what cannot be trained."""
    trace = traced(module)
    _expect_trainable(trace)
    reader = _Reader()
    functions = {name: partial(reader.function, FUNCTIONS[name]) for name in _WITH_WEIGHTS}
    interpreter = Interpreter(trace, [in_shape], type(module).__name__, modules=reader.handlers(), functions=functions)
    results, builder = interpreter.results(), interpreter.algebra.builder
    if len(results) != 1:
        raise NetworkError(f"the network returns {len(results)} tensors; expected one, the logits")
    output = results[0].node
    if len(builder.shape(output)) != 1:
        raise NetworkError(
            f"the network has outputs of shape {list(builder.shape(output))}; expected one axis of logits"
        )
    last = builder.node(output).op
    if not isinstance(last, Place) or reader.templates.get(last) is not Linear:
        output = builder.linear(output, np.eye(builder.shape(output)[0]))  # so that every network ends in a matrix
    network = builder.build(output)
    if not network.layers:
        raise UnsupportedOpError("a network to train needs at least one layer with ReLUs before its last")
    if not any(isinstance(node.op, Place) and node.op.parameters for node in network.nodes):
        raise NetworkError(f"module {type(module).__name__} has no parameters; expected some to train")
    return Reading(network=network, normalise=reader.normalise)


def _expect_trainable(trace: fx.GraphModule) -> None:
    """Refuse what would be trained differently from how torch trains it."""
    modules, parameters = dict(trace.named_modules()), dict(trace.named_parameters())
    norms: set[nn.Module] = set()
    for node in trace.graph.nodes:
        name, problem = str(node.target), ""
        if node.op == "call_module":
            m = modules[name]
            if isinstance(m, _DROPOUTS) and m.p > 0:
                problem = "drops numbers at random, which no bound knows of; expected p = 0, or a network without it"
            elif isinstance(m, BatchNorm) and m.running_mean is None:
                problem = "needs running averages (track_running_stats)"
            elif isinstance(m, BatchNorm) and m in norms:
                problem = "appears twice; expected a batch norm for each place"
            norms |= {m} if isinstance(m, BatchNorm) else set()
            name = f"module '{name}' ({type(m).__name__})"
        elif node.op == "get_attr" and name in parameters:
            users = {getattr(user.target, "__name__", str(user.target)) for user in node.users}
            if users - {*_WITH_WEIGHTS}:
                problem = f"is used by {', '.join(sorted(users))}; expected it in {', '.join(_WITH_WEIGHTS)}"
            name = f"parameter '{name}'"
        elif node.op == "call_function" and getattr(node.target, "__name__", "").startswith("dropout"):
            problem = "drops numbers at random, which no bound knows of; expected p = 0, or a network without it"
            name = f"node '{node.name}'"
        if problem:
            raise UnsupportedOpError(f"{name} {problem}")


@final
class _Reader:
    """What is done with the modules and calls that have parameters."""

    def __init__(self) -> None:
        self.normalise: Normalise | None = None
        self.templates: dict[Place, type] = {}

    def handlers(self) -> dict[type[nn.Module], Callable[[Algebra, Any, Data], Data]]:
        """By type."""
        own: dict[type[nn.Module], Callable[[Algebra, Any, Data], Data]] = {
            Normalise: self._normalise,
            nn.PReLU: self._prelu,
        }
        own |= dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), self._batch_norm)
        return own | {kind: self._module for kind, (function, _) in CALLS.items() if function in _WITH_WEIGHTS}

    def _normalise(self, a: Algebra, m: Normalise, x: Data) -> Data:
        if not bool((m.std > 0).all()):
            raise UnsupportedOpError("this normalisation needs positive deviations")
        if x.node == 0 and self.normalise is None:  # of the pixels, which a step does by itself
            self.normalise = m
            return x
        return a.quotient(a.sum(x, m.mean.cpu().numpy(), -1), m.std.cpu().numpy())

    def _module(self, a: Algebra, m: nn.Module, x: Data) -> Data:
        return self.function(FUNCTIONS[CALLS[type(m)][0]], a, x, **parameters(m))

    def function(
        self,
        handler: Callable[..., Data],
        a: Algebra,
        input: Data,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Data:
        """A call with a weight and a bias: a place if one of them is a parameter."""
        if not isinstance(weight, nn.Parameter) and not isinstance(bias, nn.Parameter):
            return handler(a, input, weight, bias, *args, **kwargs)
        return self._place(a, handler(a, input, weight, None, *args, **kwargs), weight, bias)

    def _place(self, a: Algebra, y: Data, weight: Tensor, bias: Tensor | None) -> Data:
        """A place instead of the operation that y is the output of, which it is an example of.

        What a transposed convolution writes may be cropped; then its bias comes after that.
        """
        node = a.builder.node(y.node)
        crop = node.op if isinstance(node.op, Pick) else None
        node = node if crop is None else a.builder.node(node.inputs[0])
        op, inputs = node.op, node.inputs
        if not isinstance(op, Conv | ConvTranspose | Linear):
            raise UnsupportedOpError("this product of a parameter cannot be trained; expected one with the input")
        before = a.builder.node(inputs[0])
        if isinstance(op, Linear) and isinstance(before.op, Reshape) and len(before.op.in_shape) == 3 and not op.lead:
            op, inputs = replace(op, image=before.op.in_shape), before.inputs
        template = replace(op, weight=weight, bias=None)

        def column(values: Tensor) -> Tensor:
            return values.reshape(-1, *[1] * (weight.ndim - 2))

        def make() -> Conv | ConvTranspose | Linear:
            return replace(template, bias=column(bias) if bias is not None and crop is None else None)

        weights, biases = _parameters(weight), _parameters(bias)
        own = weights + biases if crop is None else weights
        place = Place(shape=op.shape, make=make, weights=weights, parameters=own)
        self.templates[place] = type(template)
        at = a.builder.add(place, *inputs)
        if crop is None:
            return Data(at, y.shape)
        at, shape = a.builder.add(crop, at), crop.shape
        if bias is not None:
            shift = Place(shape=shape, make=lambda: Shift(column(bias).expand(shape)), parameters=biases)
            at = a.builder.add(shift, at)
        return Data(at, y.shape)

    def _batch_norm(self, a: Algebra, m: BatchNorm, x: Data) -> Data:
        node, shape = a.builder.node(x.node), a.builder.shape(x.node)
        if x.shape != (1, *shape) or shape[0] != m.num_features:
            raise NetworkError(f"{m.num_features} channels do not fit a tensor of shape {list(x.shape)}")
        parameters = tuple(m.parameters())
        op = node.op
        # Of a matrix on several axes, the rows are the last axis, and a norm's channels the first.
        axes = {Conv: 3, Linear: 1}.get(self.templates[op]) if isinstance(op, Place) and op in self.templates else None
        if isinstance(op, Place) and op.norm is None and len(shape) == axes:
            place = replace(op, norm=m, parameters=(*op.parameters, *parameters))
            self.templates[place] = self.templates[op]
            return Data(a.builder.add(place, *node.inputs), x.shape)
        return Data(a.builder.add(Place(shape=shape, norm=m, parameters=parameters), x.node), x.shape)

    def _prelu(self, a: Algebra, m: nn.PReLU, x: Data) -> Data:
        """s x + (1 − s) relu(x), as with a slope that is fixed."""
        shape, slope = a.builder.shape(x.node), m.weight

        def scale(turn: Callable[[Tensor], Tensor]) -> Place:
            return Place(
                shape=shape,
                make=lambda: Scale(turn(slope).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)),
                parameters=(slope,),
            )

        line = a.builder.add(scale(lambda s: s), x.node)
        kink = a.builder.add(scale(lambda s: 1 - s), a.builder.relu(x.node))
        return Data(a.builder.sum(line, kink), x.shape)


def _parameters(tensor: Tensor | None) -> tuple[nn.Parameter, ...]:
    return (tensor,) if isinstance(tensor, nn.Parameter) else ()
