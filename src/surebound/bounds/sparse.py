"""Matrices that are mostly zeros, as a folded convolution's are: its neurons read a small window of the image."""

import warnings

import torch
from torch import Tensor

SPARSE_BELOW = 0.12  # the share of non-zeros below which a sparse product is faster than a dense one
SPARSE_FROM = 2**14  # the least number of entries for which that is so


def is_sparse(weight: Tensor) -> bool:
    """Whether a sparse product is faster. MKL has the one that is worth it."""
    here = weight.device.type == "cpu" and torch.backends.mkl.is_available()
    if weight.numel() < SPARSE_FROM or not here:
        return False
    return int(torch.count_nonzero(weight)) <= SPARSE_BELOW * weight.numel()


def compressed(weight: Tensor) -> Tensor:
    """The matrix in rows of non-zeros."""
    with warnings.catch_warnings():  # "beta state"
        warnings.simplefilter("ignore", UserWarning)
        return weight.to_sparse_csr()


def rank_in_group(group: Tensor, counts: Tensor) -> Tensor:
    """How many entries of its group come before each, where groups come one after the other.

    >>> rank_in_group(torch.tensor([0, 0, 2, 2, 2]), torch.tensor([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]

    # (entries,) int64, (groups,) how many entries each has -> (entries,)
    """
    return torch.arange(len(group), device=group.device) - (counts.cumsum(0) - counts)[group]
