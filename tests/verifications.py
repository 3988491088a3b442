"""Random properties with known minima, decided by the whole verifier, its counterexamples checked."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from minima import milp_minimum
from networks import random_box, random_conv, random_fc, random_pool, random_residual
from numpy.typing import NDArray
from torch import Tensor

from surebound.attacks.pgd import PGD
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Box, Domain, Property, Region, Verdict
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.strategy import Strategy

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
WEAK = PGD(steps=1, restarts=1)  # so that the search has to find counterexamples
ALONE = Strategy(descents=0.0)  # and by its bounds alone


def fc(rng: np.random.Generator) -> Network:
    return random_fc(rng, (3, 6, 5, 2))


KINDS: dict[str, tuple[Callable[[np.random.Generator], Network], float]] = {
    "fc": (fc, 1.0),
    "conv": (random_conv, 0.25),
    "residual": (random_residual, 0.4),
    "pool": (random_pool, 0.25),
}


@cache
def exact(kind: str, seed: int) -> tuple[Network, Box, Vector, float]:
    """A random network, box and row, and the row's exact minimum."""
    make, radius = KINDS[kind]
    rng = np.random.default_rng(seed)
    network = make(rng)
    box = as_box(*random_box(rng, network, radius=radius))
    row = rng.normal(size=network.outputs)
    found = milp_minimum(network, box, row, 0.0, time_limit=20.0)
    assert found.value - found.bound < 1e-7
    return network, box, row, found.value


@contextmanager
def without_onednn() -> Iterator[None]:
    """As torch is on a Mac."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an option that nobody sets
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def as_box(lower: Tensor, upper: Tensor) -> Box:
    return Box(lower.flatten().numpy(), upper.flatten().numpy())


def model(network: Network) -> Model:
    """A network whose replay is itself in float32."""
    thin = network.to(torch.float32)

    def replay(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return thin.forward(torch.from_numpy(x).reshape(-1, *network.input_shape)).flatten(1).numpy()

    return Model(network, replay, "test")


def region(
    box: Domain, on_output: Matrix, constant: Vector | float, *, on_input: Matrix | None = None, strict: bool = False
) -> Region:
    rows = np.atleast_2d(on_output)
    constants = np.broadcast_to(np.asarray(constant, dtype=np.float64), len(rows)).copy()
    return Region(
        box=box, on_output=rows, on_input=on_input, constant=constants, strict=np.full(len(rows), strict, dtype=bool)
    )


def prop(network: Network, *regions: Region) -> Property:
    return Property(regions, network.inputs, network.outputs)


def decide(network: Network, *regions: Region, branching: str = "auto", options: Options | None = None) -> Verdict:
    """The verdict; a counterexample is checked in float64 here."""
    chosen = replace(options or Options(quick_attack=WEAK, strategy=ALONE, timeout=60.0), branching=branching)
    verdict = verify(model(network), prop(network, *regions), chosen)
    if verdict.status == "sat":
        assert violated(network, regions, verdict) is not None
    else:
        assert verdict.counterexample is None
    return verdict


def outputs(network: Network, x: Matrix) -> Matrix:
    points = torch.from_numpy(x).reshape(-1, *network.input_shape)
    return network.forward(points).flatten(1).numpy()


def row_values(network: Network, part: Region, x: Matrix) -> Matrix:
    """# (points, inputs) -> (points, rows)"""
    values = outputs(network, x) @ part.on_output.T + part.constant
    return values if part.on_input is None else values + x @ part.on_input.T


def violated(network: Network, regions: tuple[Region, ...], verdict: Verdict) -> int | None:
    """The first region whose box holds the counterexample and whose rows hold there, in float64."""
    assert verdict.counterexample is not None
    x = verdict.counterexample.x
    assert (x.astype(np.float32) == x).all()
    np.testing.assert_allclose(verdict.counterexample.y, outputs(network, x[None])[0], atol=1e-4)
    for i, part in enumerate(regions):
        inside = (x >= part.box.lower).all() and (x <= part.box.upper).all()
        if inside and row_values(network, part, x[None]).max() <= 1e-5:  # float32 decided, with its own roundings
            return i
    return None
