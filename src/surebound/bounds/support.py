"""Rows over the part of a folded form that they depend on.

A neuron of an early convolutional layer reads a small window, so most of its coefficients are zero, and so are those of
the neurons that it reads. Neighbours read nearly the same window: bounded together, over those columns only, they
cost a fraction of a pass over the whole form. What is left out is multiplied by zero in every pass.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Block, Rows

GROUP = 32  # rows bounded together
WORTH = 0.5  # groups must take less than this share of the work on the whole form


def groups(
    form: FoldedForm, rows: Rows, order: Tensor, *, group: int = GROUP, worth: float = WORTH
) -> Iterator[tuple[Tensor, FoldedForm, Rows]]:
    """The rows, a group of neighbours at a time: (which rows, the form they need, they themselves over its columns).

    All rows at once where that is no more work.
    """
    masks = [block.weight != 0 for block in form.blocks]
    parts = [(part, _support(form, masks, rows.coefficients[part] != 0)) for part in order.split(group)]
    if sum(len(part) * _work(form, support) for part, support in parts) > worth * len(rows) * form.numbers:
        yield torch.arange(len(rows), device=order.device), form, rows
        return
    for part, support in parts:
        yield part, restricted(form, support), replace(rows[part], coefficients=rows.coefficients[part][:, support])


def _support(form: FoldedForm, masks: list[Tensor], used: Tensor) -> Tensor:
    """Columns with a coefficient, and those that the neurons among them depend on. # (rows, columns) -> (columns,)"""
    support = used.any(0)
    for mask, where in zip(reversed(masks), reversed(form.layers), strict=True):
        needed = support[form.inputs + where.start : form.inputs + where.stop]
        support[: mask.shape[1]] |= mask[needed].any(0)
    return support


def _work(form: FoldedForm, support: Tensor) -> int:
    """The numbers of the restricted form."""
    layers = [slice(form.inputs + s.start, form.inputs + s.stop) for s in form.layers]
    return sum(int(support[s].sum()) * int(support[: s.start].sum()) for s in layers)


def restricted(form: FoldedForm, support: Tensor) -> FoldedForm:
    """The form over some of its columns that depend on no other. It bounds rows, but cannot fold. # (columns,) bool"""
    neurons = support[form.inputs :]
    blocks = []
    for block, where in zip(form.blocks, form.layers, strict=True):
        own, before = neurons[where], support[: block.weight.shape[1]]
        weight = block.weight[own][:, before]
        blocks.append(Block(weight, block.bias[own], block.error[own], block.index[own], block.active))
    inputs = support[: form.inputs]
    return replace(
        form,
        free=form.free[inputs],
        box_lower=form.box_lower[inputs],
        box_upper=form.box_upper[inputs],
        blocks=tuple(blocks),
        lower=form.lower[neurons],
        upper=form.upper[neurons],
        transposed=(),
        balls=None if form.balls is None else form.balls.over(inputs),
    )
