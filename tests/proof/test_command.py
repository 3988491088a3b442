"""`surebound verify --proof`: a proof that `surebound check` accepts, or a sentence before any work is done."""

from pathlib import Path

import onnx
import pytest
from classifiers import small_digits, write
from commands import surebound as run

from surebound.problem import Property, Robustness
from surebound.proof.property_text import property_text


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "property.vnnlib"
    file.write_text(property_text(_far(Robustness([0.5] * 64, 0, 0.01).to_property(10))))
    return file


def _far(prop: Property) -> Property:
    """One that holds: some rival scores higher by at least 100."""
    for region in prop.regions:
        region.constant[:] = 100.0
    return prop


def test_a_proof_is_written_and_accepted(tmp_path: Path, problem: Path) -> None:
    net, proof = write(small_digits(), tmp_path), tmp_path / "proof"
    done = run("verify", net, problem, "--proof", proof)
    assert (done.returncode, done.stdout) == (0, "unsat\n")
    assert f"proof of {proof.stat().st_size:,} bytes" in done.stderr
    assert run("check", net, problem, proof, "--quiet").stdout == "valid\n"


def test_a_network_that_the_checker_does_not_read_is_refused_first(tmp_path: Path, problem: Path) -> None:
    net, proof = write(small_digits(), tmp_path), tmp_path / "proof"
    model = onnx.load(net)
    onnx.save(model, tmp_path / "parts.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    done = run("verify", tmp_path / "parts.onnx", problem, "--proof", proof)
    assert (done.returncode, done.stdout) == (2, "") and not proof.exists()
    assert done.stderr.startswith("surebound: there are no proofs for '") and done.stderr.count("\n") == 1
    assert "; expected a network that surebound check reads" in done.stderr
    assert run("verify", tmp_path / "parts.onnx", problem).stdout == "unsat\n"


def test_a_property_that_the_checker_does_not_read_is_refused_first(tmp_path: Path) -> None:
    net, proof, file = write(small_digits(), tmp_path), tmp_path / "proof", tmp_path / "second.vnnlib"
    bounds = "".join(f"(assert (<= X[0,{i}] 0.5))(assert (>= X[0,{i}] 0.5))" for i in range(64))
    head = "(declare-network N (declare-input X float32 [1,64])(declare-output Y float32 [1,10]))"
    file.write_text(f"(vnnlib-version <2.0>){head}{bounds}(assert (<= Y[0,0] -1e6))")
    done = run("verify", net, file, "--proof", proof)
    assert (done.returncode, done.stdout) == (2, "") and not proof.exists()
    assert done.stderr.startswith("surebound: there are no proofs for '") and done.stderr.count("\n") == 1
    assert "expected a command of VNN-LIB 1.0" in done.stderr
    assert run("verify", net, file).stdout == "unsat\n"
