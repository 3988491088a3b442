"""`python -m surebound`, and the script of that name."""

from typing import NoReturn

from surebound import interrupts


def entry() -> NoReturn:
    """Listen to signals before anything slow is imported; then run the command."""
    interrupts.listen()
    from surebound.cli.main import run

    run()


if __name__ == "__main__":
    entry()
