"""ONNX operations that are rows of the table of activations."""

import numpy as np

from surebound.errors import UnsupportedOpError
from surebound.load.algebra import Value
from surebound.load.onnx_call import Call, Handler
from surebound.network import ACTIVATIONS
from surebound.network.activation import Activation
from surebound.network.activations import CUBE, GELU, GELU_TANH, SQUARE


def _row(function: Activation) -> Handler:
    return lambda call: call.algebra.apply(call.x, function)


def _attribute(call: Call, name: str, default: float) -> float:
    return float(np.float32(call.attributes.get(name, default)))


def _elu(call: Call) -> Value:
    return call.algebra.elu(call.x, _attribute(call, "alpha", 1.0))


def _selu(call: Call) -> Value:
    curved = call.algebra.elu(call.x, _attribute(call, "alpha", 1.67326319217681884765625))
    return call.algebra.scale(curved, np.asarray(_attribute(call, "gamma", 1.05070102214813232421875)))


def _celu(call: Call) -> Value:
    return call.algebra.celu(call.x, _attribute(call, "alpha", 1.0))


def _gelu(call: Call) -> Value:
    kind = call.attributes.get("approximate", b"none").decode()
    if kind not in ("none", "tanh"):
        raise UnsupportedOpError(f"a GELU approximated by '{kind}' is not supported; expected none or tanh")
    return call.algebra.apply(call.x, GELU if kind == "none" else GELU_TANH)


def _pow(call: Call) -> Value:
    power = call.constant(1).reshape(-1)
    known = {1.0: None, 2.0: SQUARE, 3.0: CUBE}
    if power.size != 1 or float(power[0]) not in known:
        raise UnsupportedOpError("a power other than 1, 2 or 3 is not supported")
    function = known[float(power[0])]
    return call.x if function is None else call.algebra.apply(call.x, function)


def _hard_sigmoid(call: Call) -> Value:
    algebra, slope = call.algebra, _attribute(call, "alpha", 0.2)
    line = algebra.shift(algebra.scale(call.x, np.asarray(slope)), np.asarray(_attribute(call, "beta", 0.5)))
    return algebra.each(line, lambda node: algebra.builder.clip(node, 0.0, 1.0))


ACTIVATION_HANDLERS: dict[str, Handler] = {
    **{row.onnx: _row(row) for row in ACTIVATIONS.values() if row.onnx},
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Pow": _pow,
    "Selu": _selu,
}
