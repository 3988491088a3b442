"""Whether there can be proofs about a network and a property at all: asked before any work is done."""

from pathlib import Path

from surebound.check import CheckError
from surebound.check.arithmetic import Arithmetic
from surebound.check.file import read_bytes
from surebound.check.network import read_network
from surebound.check.vnnlib import read_property
from surebound.errors import UsageError, one_line
from surebound.network.graph import Network


def expect_checkable(file: Path, network: Network) -> None:
    """Raise UsageError unless the checker reads the network in a file, and finds the same layers in it."""
    try:
        found = read_network(read_bytes(file), network.inputs, Arithmetic(False)).widths
    except CheckError as error:
        raise UsageError(
            f"there are no proofs for '{file}': {one_line(error)}; "
            "expected a network that surebound check reads (without proofs it may be verified)"
        ) from error
    if found != list(network.widths):
        raise UsageError(f"there are no proofs for '{file}': its ReLUs are counted in two ways")


def expect_checkable_property(file: Path) -> None:
    """Raise UsageError unless the checker reads the property in a file."""
    try:
        read_property(read_bytes(file))
    except CheckError as error:
        raise UsageError(
            f"there are no proofs for '{file}': {one_line(error)}; "
            "expected a property that surebound check reads (without proofs it may be verified)"
        ) from error
