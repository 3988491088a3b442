"""Mutants: small bugs put into the code on purpose, each of which a test has to notice.

    python tests/mutate.py [--jobs 2] [--only NAME …] [--table FILE]

`make mutants` runs all of them and writes the table `docs/mutants.md`.

The lists in `tests/mutants/*.toml`, one for each room of the package, hold what is changed and who should notice:

    [[mutant]]
    name = "merge-last"                             # of its own
    file = "verify/pipeline.py"                     # under src/surebound
    old = "proved=total.proved and new.proved"      # occurs in the file exactly once, or the entry is stale
    new = "proved=new.proved"
    why = "a box that was left undecided is forgotten if a later one is proved"
    tests = ["verify/test_pipeline.py::test_merge"] # under tests; as few as it takes, since all of them are run
    equivalent = "…"                                # only where no test can notice: why not

Each mutant is a copy of `src` with one change, which its tests run against. A mutant is *killed* when a test fails, and
*survives* when none does. One that cannot be imported, or whose tests hang, shows nothing and counts as an error.
When the code changes, `tests/test_mutants.py` says which entries no longer apply.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "mutants"
PACKAGE = "surebound"
SECONDS = 900.0  # for the tests of one mutant, which take seconds unless the machine is busy

Fate = Literal["killed", "survived", "equivalent", "stale", "error"]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def stale(self, package: Path) -> str:
        """Why the change no longer applies to this copy of the package, empty if it does."""
        path = package / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.old)
        return "" if count == 1 else f"its old text occurs {count} times in {self.file}; expected once"

    def apply(self, package: Path) -> None:
        """Change a copy of the package in place."""
        path = package / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a mutant; `by` is the test that killed it, or what went wrong."""

    mutant: Mutant
    fate: Fate
    by: str = ""


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """All mutants, list by list."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            mutants.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
    return mutants


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs tests of a project against changed copies of its sources."""

    root: Path = ROOT
    package: str = PACKAGE
    seconds: float = SECONDS

    def run(self, mutant: Mutant) -> Result:
        """The fate of one mutant."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            source = self.copied(Path(folder))
            stale = mutant.stale(source / self.package)
            if stale:
                return Result(mutant=mutant, fate="stale", by=stale)
            mutant.apply(source / self.package)
            code, output = self.tests(source, mutant.tests)
        if code == 0:
            return Result(mutant=mutant, fate="equivalent" if mutant.equivalent else "survived")
        failed = re.findall(r"^FAILED tests/([^\s\[]+)", output, re.MULTILINE)
        if code != 1 or not failed:
            return Result(mutant=mutant, fate="error", by=_last_line(output))
        if mutant.equivalent:
            return Result(mutant=mutant, fate="error", by=f"said to be equivalent, but noticed by {failed[0]}")
        return Result(mutant=mutant, fate="killed", by=failed[0])

    def copied(self, folder: Path) -> Path:
        """A copy of `src`."""
        return Path(shutil.copytree(self.root / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info")))

    def environment(self, source: Path) -> dict[str, str]:
        """Variables with which Python takes the package from a copy."""
        ours = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **ours, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none is needed, and they take a second

    def complaint(self, tests: Sequence[str]) -> str:
        """Why a failing test would mean nothing: the tests see another package, or fail without any change."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            source = self.copied(Path(folder))
            show = f"import {self.package}; print({self.package}.__file__)"
            found = subprocess.run(
                [sys.executable, "-c", show], env=self.environment(source), capture_output=True, text=True
            )
            if not found.stdout.startswith(str(source)):
                return f"the tests would run against {found.stdout.strip()}; expected a copy of src"
            code, output = self.tests(source, tests)
            return f"{output}\nthe tests fail without any mutant; expected them to pass" if code else ""

    def tests(self, source: Path, tests: Sequence[str]) -> tuple[int, str]:
        """pytest's exit code and output for tests of the package as it stands in `source`, up to the first failure."""
        options = ["-x", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={self.root}"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
                cwd=self.root,
                env=self.environment(source),
                capture_output=True,
                text=True,
                timeout=self.seconds,
            )
        except subprocess.TimeoutExpired:
            return 3, f"its tests took more than {self.seconds:g} seconds"
        return done.returncode, done.stdout + done.stderr


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip(" =")]
    return lines[-1] if lines else "pytest said nothing"


def table(results: Sequence[Result]) -> str:
    """The results as a page."""
    killed = sum(r.fate == "killed" for r in results)
    equivalent = sum(r.fate == "equivalent" for r in results)
    lines = [
        "# Mutants",
        "",
        "Bugs put into the code on purpose, one at a time, and the test that notices each. Every one breaks an error",
        "term, an inequality or a merge on which a verdict rests. `make mutants` runs the lists in `tests/mutants`",
        "and writes this page.",
        "",
        f"{len(results)} mutants: {killed} killed, {equivalent} shown to be equivalent, "
        f"{len(results) - killed - equivalent} otherwise.",
    ]
    for file in dict.fromkeys(r.mutant.file for r in results):
        lines += ["", f"## {file}", "", "| mutant | what would be wrong | noticed by |", "|---|---|---|"]
        for r in results:
            if r.mutant.file == file:
                lines.append(f"| {r.mutant.name} | {_cell(r.mutant.why)} | {_cell(_noticed(r))} |")
    return "\n".join(lines) + "\n"


def _noticed(result: Result) -> str:
    if result.fate == "equivalent":
        return f"nothing can: {result.mutant.equivalent}"
    return f"`{result.by}`" if result.fate == "killed" else f"**{result.fate}** {result.by}".rstrip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every mutant is killed or shown to be equivalent."""
    parser = argparse.ArgumentParser(description="Runs tests against deliberate bugs.")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants at a time (default: 2)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants whose name or file contains one")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the results as a page")
    options = parser.parse_args(arguments)
    mutants = [
        m for m in read_lists() if not options.only or any(part in m.name or part in m.file for part in options.only)
    ]
    runner, by_file = Runner(), defaultdict(list)
    for test in dict.fromkeys(test for m in mutants for test in m.tests):
        by_file[test.partition("::")[0]].append(test)
    results = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for complaint in pool.map(runner.complaint, by_file.values()):
            if complaint:
                print(complaint)
                return 2
        for i, result in enumerate(pool.map(runner.run, mutants), start=1):
            results.append(result)
            print(f"{i:3d}/{len(mutants)} {result.fate:10s} {result.mutant.name}  {result.by}", flush=True)
    if options.table is not None:
        options.table.write_text(table(results), encoding="utf-8")
    left = [r for r in results if r.fate not in ("killed", "equivalent")]
    for r in left:
        print(f"{r.fate}: {r.mutant.name} in {r.mutant.file}: {r.mutant.why} {r.by}")
    print(f"{len(results)} mutants, {len(left)} not killed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
