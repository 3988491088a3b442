"""surebound trains image classifiers whose robustness can be proved, and proves it.

model = surebound.load("net.onnx")
verdict = surebound.verify(model, surebound.Robustness(x, label=3, eps="2/255"), timeout=60)
"""

# The packages of these names come first: the functions below then take their place as attributes.
import surebound.bounds
import surebound.load
import surebound.verify
from surebound.api import bounds, load, verify
from surebound.errors import SureboundError
from surebound.problem import Box, Counterexample, Property, Region, Robustness, Verdict

__version__ = "0.1.0"

__all__ = [
    "Box",
    "Counterexample",
    "Property",
    "Region",
    "Robustness",
    "SureboundError",
    "Verdict",
    "__version__",
    "bounds",
    "load",
    "verify",
]
