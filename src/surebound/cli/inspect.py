"""`surebound inspect NET.onnx [PROPERTY]`: what is in a network, what surebound makes of it, what it will cost."""

import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from surebound.cli.arguments import check_network, check_property
from surebound.cli.command import Command
from surebound.errors import UnsupportedOpError, quoted, shortened, visible

if TYPE_CHECKING:
    from surebound.load.onnx import Survey
    from surebound.network.graph import Network
    from surebound.network.model import Model
    from surebound.problem import Property

_LABEL = 13  # the width of the labels on the left
_BYTES = 12  # of a folded weight, in float64 for proofs and in float32 for the search
_SMALL = 50_000  # multiply-adds below which the rate of large products says nothing
_MOST = 50  # names in a list
_NAME = 40  # letters of a name in a table
_NODE_BYTES = 5  # of a neuron in an open subproblem: its split, and two duals in half precision


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY", nargs="?", help="a VNN-LIB file: adds bounds and an estimate")


def _run(args: Namespace) -> int:
    check_network(args.net)
    problem = None
    if args.property is not None:
        check_property(args.property)
        from surebound.load.vnnlib import read_property

        problem = read_property(args.property)
    from surebound.load.onnx import survey

    found = survey(args.net)
    model, refused = _load(args.net, found, None if problem is None else problem.inputs)
    if model is not None and problem is not None:
        model.check_fits(problem)
    _print_survey(args.net, found)
    for reason in refused or ["none"]:
        _line("unsupported", reason)
    if model is None:
        if problem is not None:
            print()
            _line("property", f"{args.property}: not looked at, since the network is not supported")
        return 0
    if problem is None:
        _print_layers(model.network, [])
    else:
        _print_problem(args.property, model, problem)
    return 0


def _load(path: str, found: "Survey", inputs: int | None) -> tuple["Model | None", list[str]]:
    """The network, or what in it is not supported."""
    from surebound.load.onnx import load_model

    if found.unsupported:
        nodes = [f"{shortened(kind)}, node {quoted(name)}" for kind, name in found.unsupported[:_MOST]]
        left = len(found.unsupported) - _MOST
        return None, [*nodes, *[f"and {left:,} more"] * (left > 0)]
    try:
        return load_model(path, inputs=inputs), []
    except UnsupportedOpError as error:  # an operation that is supported in other forms
        return None, [str(error)]


def _line(label: str, text: str) -> None:
    print(f"{label:<{_LABEL}}{visible(text)}", flush=True)


def _print_survey(path: str, found: "Survey") -> None:
    _line("network", path)
    for name, shape in found.inputs:
        _line("input", f"{shortened(shape)}  ({quoted(name)})")
    for name, shape in found.outputs:
        _line("output", f"{shortened(shape)}  ({quoted(name)})")
    _line("operations", _counts(found.operations))
    _line("parameters", f"{found.parameters:,}")


def _counts(names: "Counter[str]") -> str:
    known = [f"{count} {shortened(name)}" for name, count in sorted(names.items())]
    return ", ".join([*known[:_MOST], *[f"and {len(known) - _MOST:,} other kinds"] * (len(known) > _MOST)])


def _print_problem(path: str, model: "Model", problem: "Property") -> None:
    network = model.network
    boxes = list({r.box.key: r.box for r in problem.regions}.values())
    rows = sum(len(r.constant) for r in problem.regions)
    print()
    _line("property", path)
    if problem.ports is not None:
        for declared, found in (
            (problem.ports.inputs, model.ports.inputs),
            (problem.ports.outputs, model.ports.outputs),
        ):
            for ours, theirs in zip(declared[:_MOST], found, strict=False):
                _line("declares", f"{ours.name} {ours.type} {list(ours.shape)}, which is {quoted(theirs.name)}")
    regions = _some(len(problem.regions), "region")
    _line("to exclude", f"{regions} with {_some(rows, 'row')} in all, over {_some(len(boxes), 'box')}")
    if not boxes:
        _line("", f"nothing can violate the property: {problem.vacuous}")
        return
    box = boxes[0]
    varying = int((box.upper > box.lower).sum())
    _line("first box", f"{varying:,} of {_some(network.inputs, 'input')} vary")
    from surebound.bounds.around import enclosure_over
    from surebound.bounds.root import settle_layers

    enclosure = enclosure_over(network, [box])
    enclosure.extend(len(network.nodes) - 1)
    columns = [("ambiguous by intervals", enclosure.ambiguous())]
    begin = time.monotonic()
    enclosure = enclosure_over(network, [box])
    settle_layers(enclosure, lambda: None)
    columns.append(("by CROWN", enclosure.ambiguous()))
    seconds = time.monotonic() - begin
    _print_layers(network, columns)
    print()
    if network.piecewise_linear:
        _print_estimate(varying, columns[-1][1], seconds)
    else:
        _line("root bounds", f"{seconds:.2f} s for CROWN on all layers")
        _line("search", "bisects the input box where few inputs vary, else splits neurons at points")


def _some(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("x") else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def _print_layers(network: "Network", columns: Sequence[tuple[str, Sequence[int]]]) -> None:
    """One row per layer of ReLUs, numbers aligned to the right."""
    widths = network.widths
    nodes = [network.nodes[i] for i in network.layers]
    numbers = [("ReLUs" if network.piecewise_linear else "neurons", widths), *columns]
    table = [["layer", "node", "shape", *(title for title, _ in numbers)]]
    for k, node in enumerate(nodes):
        shape = " x ".join(map(str, node.shape))
        table.append([str(k + 1), shortened(node.name, _NAME), shape, *(f"{column[k]:,}" for _, column in numbers)])
    table.append(["all", "", "", *(f"{sum(column):,}" for _, column in numbers)])
    spans = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    print()
    for row in table:
        left = [cell.ljust(span) for cell, span in zip(row[:3], spans[:3], strict=True)]
        right = [cell.rjust(span) for cell, span in zip(row[3:], spans[3:], strict=True)]
        print("  ".join([*left, *right]).rstrip())


def _print_estimate(varying: int, ambiguous: Sequence[int], seconds: float) -> None:
    from surebound.verify.strategy import default

    strategy = default()

    _line("root bounds", f"{seconds:.2f} s for CROWN on all layers; optimising slopes, if need be, takes longer")
    weights, wide = 0, varying
    for count in ambiguous:
        weights += count * wide
        wide += count
    if varying <= strategy.input_limit and sum(ambiguous) > strategy.neuron_limit:
        _line("search", "bisects the input box, since few inputs vary; each box gets CROWN bounds as above, in batches")
        return
    if weights > strategy.folded_limit:
        _line("search", "on the network as it is: too many neurons are ambiguous to fold the others away")
        return
    work = f"{weights:,} multiply-adds a pass and subproblem"
    if weights < _SMALL:
        _line("search", f"{work}, so little that other costs decide how long it takes")
    else:
        per_second = _multiply_adds_per_second(max(ambiguous), wide)
        speed = _rounded(per_second / (2 * weights))  # a dual iteration is one pass backward and one forward
        rate = f"{per_second / 1e9:.1f} billion a second, measured here"
        _line("search", f"{work}; at {rate}, up to {speed} dual iterations a second")
    node = _NODE_BYTES * sum(ambiguous)
    _line("memory", f"{_BYTES * weights / 2**20:,.1f} MiB for the folded network, {node:,} bytes an open subproblem")


def _multiply_adds_per_second(rows: int, columns: int) -> float:
    """The rate of the search's matrix products at about the size of this network's largest layer, in float32."""
    import torch

    batch = 256
    a, b = torch.ones(batch, rows, device="cpu"), torch.ones(rows, columns, device="cpu")
    repeats, begin = 0, time.monotonic()
    while repeats < 3 or time.monotonic() - begin < 0.1:
        torch.mm(a, b)
        repeats += 1
    return repeats * batch * b.numel() / (time.monotonic() - begin)


def _rounded(value: float) -> str:
    """Two digits: more would promise too much.

    >>> _rounded(123456.0), _rounded(8.76)
    ('120,000', '8.8')
    """
    return f"{float(f'{value:.1e}'):,.0f}" if value >= 10 else f"{value:.1f}"


COMMAND = Command("describe a network and, with a property, what verifying it will take", _configure, _run)
