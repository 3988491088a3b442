"""The scripts that the VNN-COMP harness calls, with the real command line behind them."""

import gzip
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, commands_on_path, environment, write_tiny

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "vnncomp_scripts"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example network, plain and gzipped."""
    folder = tmp_path_factory.mktemp("vnncomp")
    write_tiny(folder)
    for name in ("tiny.onnx", "fails.vnnlib"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    return folder


def run(script: str, *args: object, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as the harness does, with its temporary files apart."""
    path = commands_on_path(tmp_path / "bin")
    env = environment(PATH=path, TMPDIR=str(tmp_path), SUREBOUND=str(tmp_path / "bin" / "surebound"))
    command = ["bash", str(SCRIPTS / script), *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_unsat(tiny: Path, tmp_path: Path) -> None:
    results = tmp_path / "out" / "results.txt"
    args = ("v1", "test", tiny / "tiny.onnx", tiny / "holds.vnnlib", results, 60)
    done = run("run_instance.sh", *args, tmp_path=tmp_path)
    assert (done.returncode, results.read_text()) == (0, "unsat\n")


def test_sat_from_gzipped_files(tiny: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.txt"
    args = ("v1", "test", tiny / "tiny.onnx.gz", tiny / "fails.vnnlib.gz", results, 60)
    done = run("run_instance.sh", *args, tmp_path=tmp_path)
    lines = results.read_text().splitlines()
    assert done.returncode == 0 and lines[0] == "sat" and lines[1].startswith("((X_0 ") and lines[-1].endswith("))")


def test_a_missing_network_is_an_error(tiny: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.txt"
    args = ("v1", "test", tiny / "absent.onnx", tiny / "holds.vnnlib", results, 60)
    done = run("run_instance.sh", *args, tmp_path=tmp_path)
    assert (done.returncode, results.read_text()) == (0, "error\n") and "absent.onnx" in done.stderr


def test_prepare_checks_the_files(tiny: Path, tmp_path: Path) -> None:
    for name, code in (("holds.vnnlib", 0), ("absent.vnnlib", 1)):
        folder = tmp_path / name
        folder.mkdir()
        done = run("prepare_instance.sh", "v1", "test", tiny / "tiny.onnx", tiny / name, tmp_path=folder)
        assert done.returncode == code


@pytest.mark.parametrize("script", ["run_instance.sh", "prepare_instance.sh", "install_tool.sh"])
def test_another_version_of_the_interface_is_refused(script: str, tmp_path: Path) -> None:
    done = run(script, "v9", tmp_path=tmp_path)
    assert done.returncode == 1 and "expected the version string 'v1'" in done.stderr
