"""`surebound inspect NET.onnx [PROPERTY]`: what is in a network, what surebound makes of it, what it will cost."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import TYPE_CHECKING

from surebound.cli.command import Command
from surebound.cli.verify import _check_readable as check_readable

if TYPE_CHECKING:
    from surebound.network.graph import Network
    from surebound.problem import Property


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY", nargs="?", help="a VNN-LIB file: adds bounds and an estimate")


def _run(args: Namespace) -> int:
    check_readable(args.net, "network")
    if args.property is not None:
        check_readable(args.property, "property")
    from surebound.load.onnx import load_onnx, operations, unsupported_operations

    print(f"network     {args.net}")
    print("operations  " + _counts(operations(args.net)))
    missing = unsupported_operations(args.net)
    if missing:
        print("unsupported " + _counts(missing))
        return 0
    print("unsupported none")
    network = load_onnx(args.net)
    for line in _describe(network):
        print(line)
    if args.property is not None:
        from surebound.load.vnnlib import read_property

        problem = read_property(args.property)
        problem.check_fits(inputs=network.inputs, outputs=network.outputs)
        for line in _describe_property(network, problem):
            print(line)
    return 0


def _counts(names: "Counter[str]") -> str:
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(names.items()))


def _describe(network: "Network") -> list[str]:
    parameters = sum(
        tensor.numel()
        for node in network.nodes
        for name in ("weight", "bias")
        if (tensor := getattr(node.op, name, None)) is not None
    )
    neurons = [network.width(k) for k in range(len(network.layers))]
    return [
        f"input       {'x'.join(map(str, network.input_shape))} ({network.inputs:,})",
        f"output      {'x'.join(map(str, network.output_shape))} ({network.outputs:,})",
        f"parameters  {parameters:,}",
        f"ReLUs       {sum(neurons):,} in {len(neurons)} layers: {', '.join(f'{n:,}' for n in neurons)}",
    ]


def _describe_property(network: "Network", problem: "Property") -> list[str]:
    import time

    import torch

    from surebound.bounds import BOUNDS

    boxes = list({id(r.box): r.box for r in problem.regions}.values())
    rows = sum(len(r.constant) for r in problem.regions)
    lines = [f"property    {len(problem.regions)} regions over {len(boxes)} boxes, {rows} rows"]
    if not boxes:
        return [*lines, "            no region is reachable: the property holds"]
    varying = int((boxes[0].upper > boxes[0].lower).sum())
    shape = (1, *network.input_shape)
    lower, upper = (torch.from_numpy(end).reshape(shape) for end in (boxes[0].lower, boxes[0].upper))
    lines.append(f"first box   {varying:,} of {network.inputs:,} inputs vary")
    for method in ("interval", "crown"):
        begin = time.monotonic()
        bounds = BOUNDS[method](network, lower, upper)
        seconds = time.monotonic() - begin
        pairs = zip(bounds.lower[:-1], bounds.upper[:-1], strict=True)
        ambiguous = [int(((low < 0) & (high > 0)).sum()) for low, high in pairs]
        lines.append(
            f"{method:<11} {sum(ambiguous):,} ambiguous neurons: {', '.join(f'{n:,}' for n in ambiguous)} ({seconds:.2f} s)"
        )
    columns, numbers = varying, 0
    for count in ambiguous:
        numbers += count * columns
        columns += count
    lines.append(f"search      about {numbers:,} multiply-adds a pass and subproblem, {5 * sum(ambiguous):,} bytes a node")
    lines.append(f"memory      about {12 * numbers / 2**20:,.0f} MiB for the folded network")
    return lines


COMMAND = Command("describe a network and, with a property, what verifying it will take", _configure, _run)
