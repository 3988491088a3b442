"""A small program that checks proofs, and trusts nothing else of surebound.

    result = check("net.onnx", "property.vnnlib", "proof.npz")
    result.valid, result.reason

It reads the network and the property itself, multiplies matrices, and never solves, searches or optimises. The format,
and why an accepted proof means that no input violates the property, are in `docs/proof.md`.
"""

from surebound.check.arithmetic import CheckError, InvalidError
from surebound.check.checker import Result, check

__all__ = ["CheckError", "InvalidError", "Result", "check"]
