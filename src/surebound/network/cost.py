"""What passes through a network cost."""

from surebound.network.conv import Conv
from surebound.network.graph import Network
from surebound.network.linear import Linear, size
from surebound.network.transposed import ConvTranspose

CHUNK_ELEMENTS = 2**24  # float64 numbers in the largest tensor of a chunk: 128 MiB
PASS_PRODUCTS = 2**32  # multiply-adds of a float32 pass, or four times those of a float64 one: a fraction of a second


def products(network: Network, node: int) -> int:
    """Multiply-adds of one row's pass from a node back to the input, for convolutions and dense layers."""
    total = 0
    for before in network.nodes[: node + 1]:
        op = before.op
        if isinstance(op, Conv):
            total += size(tuple(op.weight.shape[1:])) * size(op.shape)
        elif isinstance(op, ConvTranspose):
            total += size(tuple(op.weight.shape[1:])) * size(op.in_shape)
        elif isinstance(op, Linear):
            total += size(tuple(op.weight.shape)) * size(op.lead)
    return total
