"""Checks a counterexample file without any of surebound's code: own VNN-LIB 1.0 reader, onnxruntime, exact fractions.

    python benchmarks/replay.py NET.onnx PROPERTY.vnnlib COUNTEREXAMPLE.txt

Prints nothing and exits 0 if the counterexample stands; prints why not and exits 1 otherwise. It stands if

1. every assertion that mentions inputs only holds at the written X, as exact numbers without any tolerance, and
2. every other assertion holds at X and the outputs that onnxruntime computes for X rounded to float32, and
3. the written Y are those outputs, up to one part in a thousand.
"""

import gzip
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Expression: TypeAlias = "str | list[Expression]"
Values: TypeAlias = dict[str, Fraction]

_TOKEN = re.compile(r"[()]|[^\s()]+")
_PAIR = re.compile(r"\(\s*([XY])_(\d+)\s+([^\s()]+)\s*\)")
_COMPARISONS = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: a == b,
}


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if it is gzipped."""
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def read_assertions(text: str) -> list[Expression]:
    """What a VNN-LIB 1.0 file asserts."""
    tokens = _TOKEN.findall(re.sub(r";[^\n]*", "", text))
    stack: list[list[Expression]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise ValueError("the parentheses do not match")
    commands = [c for c in stack[0] if isinstance(c, list)]
    unknown = {str(c[0]) for c in commands} - {"declare-const", "assert"}
    if unknown:
        raise ValueError(f"unknown commands: {', '.join(sorted(unknown))}")
    return [c[1] for c in commands if c[0] == "assert"]


def holds(expression: Expression, values: Values) -> bool:
    """Whether a formula is true, in exact arithmetic."""
    if isinstance(expression, str):
        raise ValueError(f"expected a formula, got '{expression}'")
    head, arguments = str(expression[0]), expression[1:]
    if head == "and":
        return all(holds(a, values) for a in arguments)
    if head == "or":
        return any(holds(a, values) for a in arguments)
    if head not in _COMPARISONS or len(arguments) != 2:
        raise ValueError(f"unknown formula '{head}' of {len(arguments)} arguments")
    return bool(_COMPARISONS[head](*(term(a, values) for a in arguments)))


def term(expression: Expression, values: Values) -> Fraction:
    """What a term is worth, exactly."""
    if isinstance(expression, str):
        return values[expression] if expression[0] in "XY" else Fraction(expression)
    head, numbers = str(expression[0]), [term(a, values) for a in expression[1:]]
    if head == "+":
        return sum(numbers, Fraction(0))
    if head == "-":
        return -numbers[0] if len(numbers) == 1 else numbers[0] - sum(numbers[1:], Fraction(0))
    if head == "*":
        product = Fraction(1)
        for number in numbers:
            product *= number
        return product
    raise ValueError(f"unknown operation '{head}'")


def mentions_output(expression: Expression) -> bool:
    """Whether a Y occurs anywhere."""
    if isinstance(expression, str):
        return expression.startswith("Y")
    return any(mentions_output(e) for e in expression)


def read_counterexample(text: str) -> tuple[list[str], list[str]]:
    """The numbers of X and of Y, as written, in order."""
    found: dict[str, dict[int, str]] = {"X": {}, "Y": {}}
    for kind, index, number in _PAIR.findall(text):
        found[kind][int(index)] = number
    for kind, numbers in found.items():
        if sorted(numbers) != list(range(len(numbers))) or not numbers:
            raise ValueError(f"the indices of {kind} are not 0, 1, 2, …")
    xs, ys = ([numbers[i] for i in range(len(numbers))] for numbers in found.values())
    return xs, ys


def run_network(content: bytes, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The network's flattened outputs for one flattened input, by onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session: Any = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    shape = [d if isinstance(d, int) and d > 0 else 1 for d in entry.shape]
    y = session.run(None, {entry.name: x.reshape(shape)})[0]
    return np.asarray(y, dtype=np.float32).reshape(-1)


def check(onnx: Path, vnnlib: Path, counterexample: str) -> str | None:
    """Why the counterexample does not stand, or None if it does."""
    try:
        xs, ys = read_counterexample(counterexample)
        assertions = read_assertions(read_bytes(vnnlib).decode())
        outputs = run_network(read_bytes(onnx), np.array([float(x) for x in xs]).astype(np.float32))
        inputs = {f"X_{i}": Fraction(x) for i, x in enumerate(xs)}
        values = inputs | {f"Y_{i}": Fraction(float(y)) for i, y in enumerate(outputs)}
        if not all(holds(a, values) for a in assertions if not mentions_output(a)):
            return "an input lies outside the box"
        if not all(holds(a, values) for a in assertions if mentions_output(a)):
            return "the outputs do not violate the property"
    except Exception as error:  # whatever goes wrong, the counterexample has not been confirmed
        return f"{type(error).__name__}: {error}"
    written = np.array([float(y) for y in ys])
    if written.shape != outputs.shape or not np.allclose(written, outputs, rtol=1e-3, atol=1e-3):
        return "the written outputs are not the network's"
    return None


def main() -> int:
    if len(sys.argv) != 4:
        print("usage: python benchmarks/replay.py NET.onnx PROPERTY.vnnlib COUNTEREXAMPLE.txt", file=sys.stderr)
        return 2
    failure = check(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_text())
    if failure:
        print(failure)
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main())
