"""Random networks as ONNX files, properties of them whose truth is known, and the proofs that verifying them leaves."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from minima import milp_minimum
from networks import random_box, random_conv, random_fc, random_pool, random_residual
from numpy.typing import NDArray
from onnx import NodeProto, helper
from onnx_models import X, save
from torch import Tensor
from verifications import ALONE, as_box, prop, region

from surebound.load.onnx import load_model
from surebound.network.conv import Conv
from surebound.network.graph import Input, Network, Relu
from surebound.network.linear import Linear, Scale, Shift, Sum
from surebound.network.shape import Pick, Reshape
from surebound.problem import Box, Property, Verdict
from surebound.proof.property_text import property_text
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.strategy import Strategy

KINDS = {
    "fc": (lambda rng: random_fc(rng, (3, 6, 5, 2)), 1.0),
    "wide": (lambda rng: random_fc(rng, (4, 10, 10, 2)), 2.0),
    "wider": (lambda rng: random_fc(rng, (5, 20, 20, 2)), 2.0),
    "conv": (random_conv, 0.25),
    "residual": (random_residual, 0.4),
    "pool": (random_pool, 0.25),
}


def export(network: Network, path: Path) -> Path:
    """The network as an ONNX file; every weight is a float32."""
    nodes: list[NodeProto] = []
    constants: dict[str, NDArray[Any]] = {}

    def constant(value: Tensor | list[int], dtype: Any = np.float32) -> str:
        constants[f"c{len(constants)}"] = np.asarray(value, dtype=dtype)
        assert (constants[f"c{len(constants) - 1}"] == np.asarray(value)).all()
        return f"c{len(constants) - 1}"

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def shifted(x: str, bias: Tensor | None) -> str:
        return x if bias is None else add("Add", x, constant(bias[None]))

    names: list[str] = []
    for node in network.nodes:
        given = [names[i] for i in node.inputs]
        match node.op:
            case Input():
                names.append(X)
            case Relu():
                names.append(add("Relu", *given))
            case Linear() as op:
                names.append(shifted(add("MatMul", *given, constant(op.weight.T)), op.bias))
            case Conv() as op:
                pads = [*op.padding, *op.padding]
                made = add(
                    "Conv", *given, constant(op.weight), strides=op.stride, pads=pads, dilations=op.dilation,
                    group=op.groups,
                )  # fmt: skip
                names.append(shifted(made, op.bias))
            case Shift() as op:
                names.append(shifted(given[0], op.bias))
            case Scale() as op:
                names.append(shifted(add("Mul", *given, constant(op.weight[None])), op.bias))
            case Sum() as op:
                assert op.signs.tolist()[0] == 1.0
                names.append(add("Add" if op.signs.tolist()[1] > 0 else "Sub", *given))
            case Reshape() as op:
                names.append(add("Reshape", *given, constant([1, *op.shape], np.int64)))
            case Pick() as op:
                flat = add("Reshape", *given, constant([1, -1], np.int64))
                names.append(add("Gather", flat, constant(op.index.tolist(), np.int64), axis=1))
            case other:
                raise TypeError(other)
    return save(path, nodes, (1, *network.input_shape), constants=constants, output=names[network.output])


@cache
def known(kind: str, seed: int) -> tuple[Network, Box, NDArray[np.float64], float, NDArray[np.float64]]:
    """A random network, box and row, the row's minimum and a point where it is reached."""
    make, radius = KINDS[kind]
    rng = np.random.default_rng(seed)
    network = make(rng)
    box = as_box(*random_box(rng, network, radius=radius))
    row = np.round(rng.normal(size=network.outputs), 3)
    found = milp_minimum(network, box, row, 0.0, time_limit=20.0)
    assert found.value - found.bound < 1e-7
    return network, box, row, found.value, found.x


def problem(kind: str, seed: int, gap: float) -> tuple[Network, Property]:
    """A property that holds by so much, or is violated by so much if that is below 0."""
    network, box, row, least, _ = known(kind, seed)
    return network, prop(network, region(box, row, gap - least))


@dataclass
class Proved:
    """A verdict and the files about it."""

    verdict: Verdict
    net: Path
    property: Path
    proof: Path

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.net, self.property, self.proof


def prove(
    folder: Path, network: Network, question: Property, branching: str = "auto", strategy: Strategy = ALONE, **more: Any
) -> Proved:
    """Verify a property of a network without an attack, and write down what proves it."""
    net, text, proof = folder / "net.onnx", folder / "prop.vnnlib", folder / "proof"
    export(network, net)
    text.write_text(property_text(question))
    proof.unlink(missing_ok=True)
    options = Options(quick_attack=None, strategy=strategy, timeout=60.0, proof=True, branching=branching)
    torch.manual_seed(0)
    verdict = verify(load_model(net), question, replace(options, **more))
    if verdict.proof is not None:
        verdict.proof.save(proof, network=net, property=text)
    return Proved(verdict, net, text, proof)
