"""Nothing false passes: a short run of the fuzzer (`make fuzz` runs it for longer), and what hostile files cost."""

import subprocess
import sys
import textwrap
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fuzz import Target, bare, false_problem, hostile, npy, run, violated
from prover import Chain, Layer, Problem, Region, random_problem, start

from surebound.check.arithmetic import CheckError
from surebound.check.file import FLOATS
from surebound.check.file import Proof as Opened

SECONDS = 20.0


def test_no_false_proof_is_accepted() -> None:
    tally = run(SECONDS, 0)
    assert tally["properties"] >= 3
    assert tally["invalid"] >= 100
    assert tally["climbs"] >= 3


def test_the_oracle_knows_a_violation() -> None:
    chain = Chain([Layer(np.array([[2.0]]), np.array([1.0]))])
    region = Region(np.zeros(1), np.ones(1), [(np.ones(1), np.zeros(1), -1.0)])
    assert violated(Problem(chain, [region]), [0])  # type: ignore[list-item]
    assert not violated(Problem(chain, [region]), [1])  # type: ignore[list-item]


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    false, _ = false_problem(0)
    target = Target(false, tmp_path, Counter())
    reasons = {name: target.offer(path) for name, path in hostile(false, tmp_path)}
    assert len(reasons) > 25
    assert all(len(reason) < 400 and "\n" not in reason for reason in reasons.values())
    assert "at most" in reasons["an absurd shape"]
    assert "longer or shorter" in reasons["a bomb of zeros"]
    assert "two members of one name" in reasons["two members of one name"]
    assert all("is packed in a way" in reasons[name] for name in ("bzip2", "lzma"))
    assert "is larger than 134,217,728 bytes" in reasons["a member that is too large"]
    assert "damaged" in reasons["a length of 10,000 digits"]


@pytest.mark.parametrize(("key", "value"), [("version", 2), ("version", None), ("format", "another")])
def test_another_version_is_refused(tmp_path: Path, key: str, value: object) -> None:
    false, _ = false_problem(1)
    proof = start(false)
    proof.about[key] = value
    with pytest.raises(CheckError, match="of version 1"):
        Opened(proof.save(tmp_path / "p.npz"))


def test_no_more_is_unpacked_than_an_array_takes(tmp_path: Path) -> None:
    """64 MiB of zeros behind an array of a few numbers."""
    false, _ = false_problem(0)
    target = Target(false, tmp_path, Counter())
    path = next(path for name, path in hostile(false, tmp_path) if name == "a bomb of zeros")
    tracemalloc.start()
    assert "longer or shorter" in target.offer(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_hostile_files_take_little_memory(tmp_path: Path) -> None:
    """In a process that may take 1 GiB beyond what imports take."""
    code = f"""
    import resource, sys
    from collections import Counter
    from pathlib import Path
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from fuzz import Target, false_problem, hostile
    false, _ = false_problem(0)
    folder = Path({str(tmp_path)!r})
    target = Target(false, folder, Counter())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, path in hostile(false, folder):
        target.offer(path)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**20  # KiB


@pytest.mark.parametrize("cuts", [False, True])
def test_chains_of_rows_are_not_followed_to_their_end(tmp_path: Path, cuts: bool) -> None:
    """A tree of 10,000 rows, each the second child of the one before: all paths together have 50 million."""
    problem = random_problem(0)
    rows = np.arange(10_000, dtype=np.int32)
    tree = np.stack([0 * rows, -1 - rows, rows + 1], 1)
    tree[-1, 2] = -1 - len(rows)
    proof = start(problem)
    step = {"kind": "region", "box": 0, "region": 0, "lines": "crown"} | ({"rebound": "crown"} if cuts else {})
    arrays = {"tree": tree, "roots": np.zeros(1, np.int32), "c0/row": np.zeros(len(rows) + 1, np.int32)}
    if cuts:
        tree[:, 0] = sum(problem.chain.widths)
        arrays["at"] = np.full(len(rows), problem.regions[0].low[0])
    proof.step(step, arrays)
    tracemalloc.start()
    assert "a tree is deeper than" in Target(problem, tmp_path, Counter()).offer(proof)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize("lines", ["flat", "crown", "fastlin"])
def test_a_bound_of_zero_is_not_enough(tmp_path: Path, lines: str) -> None:
    """y = x on [0, 1] and the row y <= 0: the least value is 0, which the row allows."""
    chain = Chain([Layer(np.eye(1), np.zeros(1)), Layer(np.eye(1), np.zeros(1))])
    problem = Problem(chain, [Region(np.zeros(1), np.ones(1), [(np.ones(1), np.zeros(1), 0.0)])])
    assert "has the bound" in Target(problem, tmp_path, Counter()).offer(bare(problem, lines))


def test_a_proof_without_steps_proves_nothing(tmp_path: Path) -> None:
    false, _ = false_problem(1)
    assert "nothing is proved" in Target(false, tmp_path, Counter()).offer(start(false))


def test_an_array_is_not_read_beyond_its_limit_nor_in_another_order(tmp_path: Path) -> None:
    false, _ = false_problem(1)
    proof = start(false)
    proof.arrays |= {"square": np.asfortranarray(np.arange(4.0).reshape(2, 2)), "line": np.arange(4.0)}
    with Opened(proof.save(tmp_path / "p.npz")) as opened:
        assert opened.array("line", FLOATS, (None,), 32).tolist() == [0, 1, 2, 3]
        with pytest.raises(CheckError, match="at most 31 bytes"):
            opened.array("line", FLOATS, (None,), 31)
        with pytest.raises(CheckError, match="the array 'square' is"):
            opened.array("square", FLOATS, (2, 2))


def test_a_negative_length_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    false, _ = false_problem(1)
    path = start(false).save(tmp_path / "p.npz")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("line.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(80)))
    with Opened(path) as opened, pytest.raises(CheckError, match=r"float64 of \[-1\]; expected"):
        opened.array("line", FLOATS, (None,))


@pytest.mark.parametrize("length", [2**40, 2**62, 2**70])
def test_arrays_without_numbers_have_a_length_too(tmp_path: Path, length: int) -> None:
    """Slopes of no neurons for 2⁴⁰ leaves."""
    false, _ = false_problem(1)
    path = start(false).save(tmp_path / "p.npz")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("none.npy", npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({length}, 0), }}"))
    with Opened(path) as opened, pytest.raises(CheckError, match=r"the array 'none' is float64 of \[.*, 0\]; expected"):
        opened.array("none", FLOATS, (None, 0))
