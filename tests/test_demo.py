"""`make demo`, without the set-up."""

import subprocess
from pathlib import Path

from commands import ROOT, commands_on_path, environment


def test_the_demo_shows_a_proof_and_a_counterexample(tmp_path: Path) -> None:
    env = environment(PATH=commands_on_path(tmp_path / "bin"))
    done = subprocess.run(
        ["bash", ROOT / "examples" / "demo.sh"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = {line: lines[i + 1] for i, line in enumerate(lines[:-1]) if line.startswith("$ surebound verify")}
    assert list(first.values()) == ["unsat", "sat"]
    assert "((X_0 " in done.stdout and "Traceback" not in done.stderr
