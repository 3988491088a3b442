"""`python -m surebound`, and the script of that name."""

import time
from typing import NoReturn

from surebound import interrupts


def entry() -> NoReturn:
    """Listen to signals before anything slow is imported; then run the command."""
    began = time.monotonic()
    interrupts.listen()
    from surebound.cli.main import run

    run(began)


if __name__ == "__main__":
    entry()
