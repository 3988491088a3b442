"""surebound trains image classifiers whose robustness can be proved, and proves it."""

__version__ = "0.1.0"
