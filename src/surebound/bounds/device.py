"""Where bounds are computed: on the processor, or on a GPU by the name that torch has for it, such as cuda:1.

A network knows its device (`Network.device`), and whatever is made for it is made there. Linear programs, replays on
onnxruntime, the search's queue and proofs are the processor's on any device, and so are random numbers, which are drawn
there and moved: the same seed draws the same.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from surebound.bounds.precision import is_kept
from surebound.errors import UsageError

CPU = "cpu"
_KNOWN = (CPU, "cuda")  # kinds of devices of which enough is known to prove something
_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"


def expect_usable(name: str, said: str) -> None:
    """Raise UsageError unless torch can compute on the device, which the user has `said`."""
    try:
        torch.ones(1, device=name).add(1).item()
    except Exception as error:  # a backend can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"{said} cannot be used here: {reason}") from error


def expect_exact(name: str) -> None:
    """Raise UsageError unless bounds that are computed on the device can be proofs."""
    if name == CPU:
        return
    said = f"the device '{name}'"
    if not isinstance(name, str) or name.partition(":")[0] not in _KNOWN:
        raise UsageError(f"{said} is of a kind whose arithmetic is not known to prove; expected cpu, cuda or cuda:N")
    expect_usable(name, said)
    if os.environ.get(_EMULATION, "0") not in ("", "0"):
        raise UsageError(f"{said} emulates float64 ({_EMULATION} is set), and how well is not known; expected its own")
    with plain_convolutions(name):
        if not is_kept(torch.float64, name):
            raise UsageError(f"{said} computes float64 products in less; expected all bits, down to denormal numbers")


@contextmanager
def plain_convolutions(name: str) -> Iterator[None]:
    """While it lasts, convolutions on the device are sums of products, as error terms have them.

    cuDNN may also go by way of Winograd's or Fourier's transform, or TF32, and so may NNPACK, which torch takes on a
    processor where oneDNN is switched off or not there, as on a Mac. Without them, torch multiplies matrices.
    """
    before = torch.backends.cudnn.enabled
    if name != CPU:
        torch.backends.cudnn.enabled = False
    try:
        with torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        if name != CPU:
            torch.backends.cudnn.enabled = before
