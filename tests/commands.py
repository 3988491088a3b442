"""Runs surebound as a user does: in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from onnx import helper
from onnx_models import X, save

ROOT = Path(__file__).resolve().parents[1]
SUREBOUND = [sys.executable, "-m", "surebound"]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child process: the package under test, and one thread."""
    import surebound

    path = str(Path(surebound.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **extra}


def surebound(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for it."""
    command = [*SUREBOUND, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def commands_on_path(folder: Path) -> str:
    """A PATH on which `surebound` and `python` are the ones under test, whether or not they are installed."""
    folder.mkdir()
    for name, arguments in (("surebound", "-m surebound "), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def write_tiny(folder: Path) -> None:
    """tiny.onnx, holds.vnnlib and fails.vnnlib of the examples."""
    spec = importlib.util.spec_from_file_location("tiny", ROOT / "examples" / "tiny.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(folder)


def write_hard(folder: Path) -> None:
    """hard.onnx and hard.vnnlib: a random network and a property that no search decides within minutes."""
    rng = np.random.default_rng(0)
    sizes = (30, 60, 60, 60, 2)
    constants, nodes, value = {}, [], X
    for k, (wide, out) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        constants[f"w{k}"] = (rng.normal(size=(wide, out)) * np.sqrt(2 / wide)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], ["y" if last else f"affine{k}"]))
        if not last:
            value = f"relu{k}"
            nodes.append(helper.make_node("Relu", [f"affine{k}"], [value]))
    save(folder / "hard.onnx", nodes, [1, sizes[0]], constants=constants, output_shape=[1, sizes[-1]])
    declared = [f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))" for i in range(sizes[0])]
    declared += ["(declare-const Y_0 Real)", "(declare-const Y_1 Real)", "(assert (>= Y_0 20))"]
    (folder / "hard.vnnlib").write_text("\n".join(declared))


def write_sine(folder: Path) -> None:
    """sine.onnx: two inputs, two outputs, and an operation that is not supported."""
    nodes = [helper.make_node("Sin", [X], ["y"], name="squash")]
    save(folder / "sine.onnx", nodes, [1, 2], output_shape=[1, 2])
