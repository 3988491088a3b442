"""`surebound report STORE_OR_DIR [-o report.html]`: one HTML page on results and training."""

from argparse import ArgumentParser, Namespace

from surebound import interrupts
from surebound.cli.arguments import output_files, write_whole
from surebound.cli.command import Command
from surebound.errors import visible


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="STORE_OR_DIR",
        help="a store of results, a training folder, or a folder with some of both, in it or below",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the page (default report.html beside the store or in the folder, which is replaced)",
    )


def _run(args: Namespace) -> int:
    from surebound.report.page import default_output, render
    from surebound.report.results import gather

    material = gather(args.source)
    target = str(default_output(args.source)) if args.output is None else args.output
    file = output_files(keep=tuple(material.stores), output=target)["output"]
    page = render(material)
    with interrupts.held():
        write_whole(file, page)
        print(visible(str(file)), flush=True)
    return 0


COMMAND = Command("make one HTML page, complete in itself, from results and training folders", _configure, _run)
