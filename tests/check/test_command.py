"""`surebound check`: what it prints, its exit codes, and what it imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import bare, false_problem
from prover import prove, random_problem, write

from surebound.cli.main import main


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    problem = random_problem(1)
    for region in problem.regions:
        region.rows = [(c, d, e + 5.0) for c, d, e in region.rows]
    proof = prove(problem)
    assert proof is not None
    return [str(path) for path in write(tmp_path, problem, proof)]


def test_a_true_proof(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *files, "--json", str(tmp_path / "r.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "valid"
    assert any(line.startswith("tightest leaf: ") for line in lines)
    assert any(line.startswith("trusted: NumPy") for line in lines)
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["valid"] is True and record["slack"] > 0 and record["leaves"] > 0
    assert main(["check", *files, "--exact", "--quiet"]) == 0
    assert capsys.readouterr().out == "valid\n"


def test_a_false_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    false, _ = false_problem(2)
    files = [str(path) for path in write(tmp_path, false, bare(false))]
    assert main(["check", *files, "--quiet"]) == 1
    assert capsys.readouterr().out.startswith("invalid: step 0: leaf 0 has the bound -")
    assert main(["check", *files]) == 1
    assert "trusted" not in capsys.readouterr().out


def test_a_proof_of_something_else(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[1]).write_bytes(Path(files[1]).read_bytes() + b"\n")
    assert main(["check", *files, "--quiet"]) == 1
    assert capsys.readouterr().out == "invalid: it is about another network or property: its 'property' differs\n"


def test_unreadable_files(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_bytes(b"nonsense")
    for place in range(3):
        given = [str(tmp_path / "bad") if i == place else file for i, file in enumerate(files)]
        assert main(["check", *given]) == 2
        err = capsys.readouterr().err
        assert err.startswith("surebound: ") and err.count("\n") == 1
    assert main(["check", files[0], files[1], str(tmp_path / "none")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["check", files[0], files[1], str(tmp_path)]) == 2
    assert "cannot read the proof '" in (err := capsys.readouterr().err) and "it is a folder" in err
    (tmp_path / "none").write_bytes(b"")
    assert main(["check", files[0], files[1], str(tmp_path / "none")]) == 2
    assert "is empty; expected a file that surebound verify --proof wrote" in capsys.readouterr().err


def test_the_command_imports_neither_torch_nor_the_verifier(files: list[str]) -> None:
    code = (
        "import sys; from surebound.cli.main import main; code = main(['check', *sys.argv[1:], '--quiet']);"
        "print(code, *sorted(m for m in sys.modules if m == 'torch' or m.startswith('surebound.load.')))"
    )
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, env=os.environ)
    assert done.stdout.splitlines() == ["valid", "0"]
