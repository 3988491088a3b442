"""A fuzzer that offers the checker false proofs: of properties that a known point violates, in exact arithmetic.

    python tests/check/fuzz.py --minutes 10 --seed 1

Each property comes with true proofs of something near it (a property that holds, another network), whose hashes are
repaired; they are changed in every way an attacker may think of, optimised against the checker's own values, or damaged
as files. None may be accepted, and whatever happens must be a sentence.
"""

import argparse
import contextlib
import copy
import io
import re
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from prover import Problem, Proof, bisect, planed, prove, random_problem, start, violate

from surebound.check.arithmetic import Arithmetic, CheckError
from surebound.check.file import Proof as Opened
from surebound.check.network import read_network
from surebound.check.steps import Steps
from surebound.check.vnnlib import read_property

CLIMBED = ("alpha", "beta", "pi", "weight", "kappa")
SPECIAL = [np.nan, np.inf, -np.inf, 5e-324, -5e-324, 1e308, -1e308, 1e59, 1e61, -1.0, 2.0, 0.0, -0.0, 1e-9]


def false_problem(seed: int) -> tuple[Problem, Problem]:
    """A property with a region that a corner of its box violates in exact arithmetic, and one near it that may hold."""
    rng = np.random.default_rng(seed)
    near = random_problem(seed)
    false = copy.deepcopy(near)
    region = false.regions[0]
    corner = np.where(rng.random(region.low.size) < 0.5, region.low, region.high)
    violate(false, 0, corner, rng)
    assert violated(false, [Fraction(v) for v in corner.tolist()])
    return false, near


def violated(problem: Problem, x: list[Fraction]) -> bool:
    """Whether a point satisfies all rows of the first region, in exact arithmetic."""
    y = problem.chain.exact(x)
    return all(_row(row, x, y) <= 0 for row in problem.regions[0].rows)


def _row(row: tuple[np.ndarray, np.ndarray, float], x: list[Fraction], y: list[Fraction]) -> Fraction:
    terms = [*zip(row[0].tolist(), y, strict=True), *zip(row[1].tolist(), x, strict=True)]
    return sum((Fraction(a) * b for a, b in terms), Fraction(row[2]))


def truths(seed: int, false: Problem, near: Problem) -> Iterator[tuple[str, Proof]]:
    """True proofs of what is near the false property."""
    rng = np.random.default_rng(seed)
    ways: list[tuple[str, Callable[[Problem], Proof | None]]] = [
        ("crown", lambda p: prove(p, most=16)),
        ("stored", lambda p: prove(p, lines="stored", layers="stored", most=16)),
        ("flat", lambda p: prove(p, lines="flat", layers="flat", most=16)),
        ("input", lambda p: bisect(p, most=32)),
        ("planes", lambda p: _planed(p, prove(p, lines="stored", most=16), rng)),
    ]
    name, way = ways[seed % len(ways)]
    easier = copy.deepcopy(near)
    for region in easier.regions:
        region.rows = [(c, d, e + 0.3 + abs(e)) for c, d, e in region.rows]
    other = copy.deepcopy(false)
    layer = other.chain.layers[-1]
    layer.bias = np.float32(layer.bias + rng.choice([-1, 1]) * 2.0).astype(float)
    smaller = copy.deepcopy(near)
    for region in smaller.regions:
        region.high = np.float32((region.low + region.high) / 2).astype(float)
        region.high = np.maximum(region.high, region.low)
    near_ones = [("near", near), ("easier", easier), ("other", other), ("smaller", smaller)]
    for what, problem in (near_ones[i] for i in rng.choice(4, size=2, replace=False)):
        proof = way(problem)
        if proof is not None:
            yield f"{name} of {what}", proof
    yield "nothing", bare(false)
    yield "nothing but planes", planed(false, bare(false), rng)


def _planed(problem: Problem, proof: Proof | None, rng: np.random.Generator) -> Proof | None:
    return None if proof is None else planed(problem, proof, rng)


def bare(problem: Problem, lines: str = "crown") -> Proof:
    """A proof that claims all regions by one leaf each."""
    proof = start(problem)
    for number, box in enumerate(problem.boxes()):
        rows = len(problem.regions[number].rows)
        proof.step(
            {"kind": "region", "box": box, "region": number, "lines": lines}, {"c0/pi": np.full((1, rows), 1 / rows)}
        )
    return proof


# ---- changes


def _number(rng: np.random.Generator, proof: Proof) -> None:
    """One number becomes another."""
    names = [name for name, value in proof.arrays.items() if value.size]
    name = str(rng.choice(names))
    value = proof.arrays[name].copy()
    at = int(rng.integers(value.size))
    if value.dtype.kind == "f":
        old = value.flat[at]
        with np.errstate(all="ignore"):
            choices = [*SPECIAL, -old, old * 2, old + 1e-9, old - 1e-9, old * (1 + 1e-6), 1 - old]
            value.flat[at] = choices[int(rng.integers(len(choices)))]
    else:
        info = np.iinfo(value.dtype)
        choices = [info.min, info.max, 0, 1, -1, int(value.flat[at]) + 1, int(value.flat[at]) - 1]
        value.flat[at] = np.clip(choices[int(rng.integers(len(choices)))], info.min, info.max)
    proof.arrays[name] = value


def _all_of_one(rng: np.random.Generator, proof: Proof) -> None:
    """All numbers of an array change alike: scaled, turned, shuffled or special."""
    names = [name for name, value in proof.arrays.items() if value.size and value.dtype.kind == "f"]
    if not names:
        return
    name = str(rng.choice(names))
    value = proof.arrays[name]
    with np.errstate(all="ignore"):
        changed = [
            -value,
            value * 1e30,
            value * 1e-30,
            value + 1e-9,
            value - 1e-9,
            0 * value,
            rng.permutation(value.reshape(-1)).reshape(value.shape),
            np.full_like(value, rng.choice(SPECIAL)),
            np.full_like(value, 1.0),
        ]
        proof.arrays[name] = changed[int(rng.integers(len(changed)))].astype(value.dtype)


def _tighter(rng: np.random.Generator, proof: Proof) -> None:
    """Claimed bounds are moved inward, a little or much."""
    by = float(rng.choice([1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0]))
    for name in [n for n in proof.arrays if n.endswith("/bound")]:
        proof.arrays[name] = proof.arrays[name] + by * proof.arrays[name[: -len("bound")] + "side"]


def _type(rng: np.random.Generator, proof: Proof) -> None:
    """An array of another type, shape or order."""
    name = str(rng.choice(list(proof.arrays)))
    value = proof.arrays[name].real
    with np.errstate(all="ignore"):
        changed: list[Any] = [
            value.astype(np.float16),
            value.astype(">f8"),
            value.astype(np.complex128),
            value.astype(np.int64),
            value.astype(np.uint8),
            value.astype(bool),
            value.astype("S8"),
            value.reshape(1, *value.shape),
            value.reshape(-1)[:-1],
            np.concatenate([value, value]) if value.ndim else value,
            np.asfortranarray(value.reshape(-1, 1).repeat(2, 1)),
            np.zeros(0, dtype=value.dtype),
            np.zeros((0, *value.shape[1:]), dtype=value.dtype),
        ]
    proof.arrays[name] = changed[int(rng.integers(len(changed)))]


def _tree(rng: np.random.Generator, proof: Proof) -> None:
    """A child is forgotten, repeated, turned around or made a cycle of."""
    names = [name for name in proof.arrays if name.endswith("/tree")]
    if not names:
        return
    name = str(rng.choice(names))
    tree = proof.arrays[name].copy()
    r, c = int(rng.integers(len(tree))), int(rng.integers(1, 3))
    if tree.shape[1:] != (3,) or not len(tree):
        return
    changes = [
        lambda: tree.__setitem__((r, c), tree[r, 3 - c]),
        lambda: tree.__setitem__((r, c), r),
        lambda: tree.__setitem__((r, c), 0),
        lambda: tree.__setitem__((r, c), -1),
        lambda: tree.__setitem__((r, slice(1, 3)), tree[r, :0:-1].copy()),
        lambda: tree.__setitem__((r, 0), tree[0, 0]),
        lambda: tree.__setitem__((r, 0), -1),
        lambda: proof.arrays.update({name.replace("tree", "roots"): np.array([tree[r, c]], dtype=np.int32)}),
        lambda: proof.arrays.pop(name),
    ]
    changes[int(rng.integers(len(changes)))]()
    if name in proof.arrays:
        proof.arrays[name] = tree


def _pruned(rng: np.random.Generator, proof: Proof) -> None:
    """One side of a split stands for both."""
    for name in [name for name in proof.arrays if name.endswith("/tree")]:
        prefix = name[: -len("tree")]
        number = int(prefix[1:-1])
        if number >= len(proof.about["steps"]):
            continue
        proof.arrays[prefix + "roots"] = np.array([-1], dtype=np.int32)
        proof.arrays[name] = np.zeros((0, 3), dtype=np.int32)
        for other in list(proof.arrays):
            if other.startswith(prefix + "c0/") and proof.arrays[other].ndim:
                proof.arrays[other] = proof.arrays[other][:1]
        proof.arrays.pop(prefix + "c0/beta", None)
        proof.arrays.pop(prefix + "at", None)
        proof.about["steps"][number] |= {"chunks": 1}


def _step(rng: np.random.Generator, proof: Proof) -> None:
    """The JSON of a step says something else."""
    steps = proof.about["steps"]
    if not steps:
        return
    step = dict(steps[int(rng.integers(len(steps)))])
    place = int(rng.integers(len(steps)))
    key = str(rng.choice(["kind", "box", "layer", "region", "lines", "chunks", "rebound", "extra"]))
    values: list[Any] = [
        0,
        1,
        -1,
        2**40,
        10**400,
        1.0,
        True,
        None,
        "crown",
        "flat",
        "interval",
        "stored",
        [],
        {},
        "layer",
        "region",
    ]
    step[key] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.2:
        step.pop(key)
    steps[place] = step
    if rng.random() < 0.2:
        del steps[int(rng.integers(len(steps)))]
    if rng.random() < 0.2:
        steps.insert(0, rng.choice([None, 3, "region"]))  # type: ignore[arg-type]


def _about(rng: np.random.Generator, proof: Proof) -> None:
    """The JSON of the proof says something else."""
    key = str(rng.choice(list(proof.about)))
    values: list[Any] = [None, 0, 2, "", "x", [], {}, [0], "0" * 64, True]
    proof.about[key] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.2:
        del proof.about[key]


CHANGES = [_number, _number, _all_of_one, _tighter, _type, _tree, _pruned, _step, _about]


def damage(rng: np.random.Generator, path: Path) -> None:
    """The file is cut short, or some of its bytes change."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        del content[int(rng.integers(len(content))) :]
    else:
        for _ in range(int(rng.choice([1, 3, 30]))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
    path.write_bytes(bytes(content))


# ---- files that were never proofs


def npy(header: str, data: bytes = b"", *, version: int = 1, length: int | None = None) -> bytes:
    """An NPY file with any header."""
    size = len(header) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + header.encode() + data
    )


def hostile(problem: Problem, folder: Path) -> Iterator[tuple[str, Path]]:
    """Archives that ask for much memory, or that are broken on purpose."""
    proof = bare(problem)
    good = proof.save(folder / "good.npz").read_bytes()
    about = zipfile.ZipFile(io.BytesIO(good)).read("about.npy")

    def archive(name: str, members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> tuple[str, Path]:
        path = folder / "hostile.npz"
        with zipfile.ZipFile(path, "w", kind) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of two members of one name
            for member, content in members:
                file.writestr(member, content)
        return name, path

    def pi(content: bytes) -> list[tuple[str, bytes]]:
        return [("about.npy", about), ("s0/c0/pi.npy", content)]

    rows = len(problem.regions[0].rows)
    header = "{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}"
    yield archive("a bomb of zeros", pi(npy(header.format("<f8", False, (1, rows)), bytes(2**26))))
    yield archive("a bomb as about", [("about.npy", npy(header.format("|u1", False, (2**31,)), bytes(2**26)))])
    yield archive("an absurd shape", pi(npy(header.format("<f8", False, (2**62, rows)))))
    yield archive("a negative shape", pi(npy(header.format("<f8", False, (-1, rows)))))
    yield archive("a shape that overflows", pi(npy(header.format("<f8", False, (2**40, 2**40)))))
    yield archive("an object", pi(npy(header.format("|O", False, (1, rows)), b"cos\nsystem\n(S'echo'\ntR.")))
    yield archive("a structure", pi(npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }")))
    yield archive("fortran order", pi(npy(header.format("<f8", True, (1, rows)), bytes(8 * rows))))
    yield archive("code in the header", pi(npy("__import__('os').system('true')")))
    yield archive("a long header", pi(npy("(" * 60_000)))
    yield archive("a large header", pi(npy(" " * 2**26, version=2)))
    yield archive("a member that is too large", pi(npy(header.format("<f8", False, (1, rows)), bytes(2**27 + 2**15))))
    yield archive("a length of 10,000 digits", pi(npy(header.format("<f8", False, f"(0x{'f' * 8000}, {rows})"))))
    yield archive("a header that is not there", pi(npy("", version=2, length=2**31)))
    yield archive("another version", pi(npy(header.format("<f8", False, (1, rows)), version=9)))
    yield archive("no array", pi(b"hello"))
    yield archive("an empty member", pi(b""))
    yield archive("too short", pi(npy(header.format("<f8", False, (1, rows)), b"\0")))
    yield archive("bzip2", pi(npy(header.format("<f8", False, (1, rows)), bytes(8 * rows))), zipfile.ZIP_BZIP2)
    yield archive("lzma", pi(npy(header.format("<f8", False, (1, rows)), bytes(8 * rows))), zipfile.ZIP_LZMA)
    yield archive("deep JSON", [("about.npy", npy(header.format("|u1", False, (10**6,)), b"[" * 10**6))])
    yield archive("long number", [("about.npy", npy(header.format("|u1", False, (10**5,)), b"1" * 10**5))])
    yield archive("JSON of a list", [("about.npy", npy(header.format("|u1", False, (2,)), b"[]"))])
    yield archive("not text", [("about.npy", npy(header.format("|u1", False, (2,)), b"\xff\xfe"))])
    yield archive("nothing", [])
    many = [("about.npy", about), *((f"m{i}.npy", b"") for i in range(20_000))]
    yield archive("many members", many)
    twice = [("about.npy", about), *pi(npy(header.format("<f8", False, (1, rows)), bytes(8 * rows)))]
    yield archive("two members of one name", twice)
    for name, content in (
        ("no archive", b"PK\x03\x04" + bytes(100)),
        ("empty", b""),
        ("text", b"proof " * 99),
        ("cut", good[:-40]),
    ):
        (folder / "hostile.npz").write_bytes(content)
        yield name, folder / "hostile.npz"


# ---- offers


class Target:
    """A false property, read once, to which many proofs are offered."""

    def __init__(self, problem: Problem, folder: Path, tally: Counter[str]) -> None:
        self.about, self.folder, self.tally = start(problem).about, folder, tally
        self.problem, self.property = problem, read_property(problem.vnnlib())
        self.network = read_network(problem.chain.onnx(), problem.chain.inputs, Arithmetic())
        self.hashes = {name: self.about[name] for name in ("network", "property")}

    def aimed(self, proof: Proof) -> Proof:
        """The proof with the hashes of this one."""
        about = {**copy.deepcopy(proof.about), **{k: self.about[k] for k in ("network", "property", "widths")}}
        return Proof(about, dict(proof.arrays))

    def offer(self, proof: Proof | Path) -> str:
        """Raises if a false proof is accepted; why it was refused."""
        self.tally["offers"] += 1
        path = proof if isinstance(proof, Path) else proof.save(self.folder / "proof.npz", compress=False)
        try:
            with Opened(path) as opened:
                reason = Steps(self.network, self.property, opened, lambda *_: None).judge(self.hashes)
        except CheckError as error:
            self.tally["unreadable"] += 1
            return str(error)
        if not reason:
            raise AssertionError("a false proof was accepted")
        self.tally["invalid"] += 1
        return reason


def climb(rng: np.random.Generator, target: Target, proof: Proof) -> None:
    """Change multipliers, slopes and planes wherever that raises the checker's own value for the leaf that fails."""
    best = -np.inf
    for _ in range(12):
        tried = Proof(proof.about, dict(proof.arrays))
        names = [n for n in proof.arrays if n.rsplit("/", 1)[-1] in CLIMBED and proof.arrays[n].size]
        if not names:
            return
        name = str(rng.choice(names))
        value = tried.arrays[name].astype(np.float64)
        step = rng.choice([1e-3, 1e-1, 1.0, 10.0])
        value = value + step * rng.normal(size=value.shape) * (rng.random(value.shape) < 0.5)
        value = value if name.endswith("weight") else np.maximum(value, 0)
        if name.endswith(("alpha", "kappa")):
            value = np.minimum(value, 1)
        tried.arrays[name] = value
        reason = target.offer(tried)
        found = re.search(r"has the bound (-?[0-9.e+-]+);", reason)
        if found and float(found[1]) > best:
            best, proof = float(found[1]), tried
    target.tally["climbs"] += 1


def attempt(seed: int, folder: Path, tally: Counter[str]) -> None:
    """All offers for one false property."""
    rng = np.random.default_rng(seed)
    false, near = false_problem(seed)
    tally["properties"] += 1
    target = Target(false, folder, tally)
    for _, truth in truths(seed, false, near):
        proof = target.aimed(truth)
        target.offer(proof)
        for _ in range(6):
            changed = target.aimed(copy.deepcopy(truth))
            for _ in range(int(rng.choice([1, 1, 2, 4]))):
                # of arrays that were changed before
                with contextlib.suppress(ValueError, TypeError, IndexError, KeyError, OverflowError):
                    CHANGES[int(rng.integers(len(CHANGES)))](rng, changed)
            target.offer(changed)
        climb(rng, target, proof)
        damaged = proof.save(folder / "damaged.npz")
        damage(rng, damaged)
        target.offer(damaged)
        if target.hashes["property"] != truth.about["property"]:  # with the hashes of what it does prove
            target.offer(truth)
    for name, path in hostile(false, folder) if seed % 100 == 0 else ():
        try:
            target.offer(path)
        except Exception as error:
            error.add_note(name)
            raise


def run(seconds: float, first: int) -> Counter[str]:
    """What was offered."""
    tally: Counter[str] = Counter()
    end, seed = time.monotonic() + seconds, first
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            try:
                attempt(seed, Path(folder), tally)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            seed += 1
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = run(60 * given.minutes, given.seed)
    sys.stdout.write(", ".join(f"{count:,} {name}" for name, count in counts.items()) + ": none accepted\n")
