"""`python -m surebound`."""

from surebound.cli.main import entry

entry()
