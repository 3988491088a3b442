"""The version of the package, where everything may read it."""

__version__ = "0.9.1"
