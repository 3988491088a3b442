"""docs/extending.md is true: its files and lines, put into a copy of the package and the tests, are all it takes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import environment

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/extending.md"
FILE = re.compile(r"# (\S+\.py)\n(.*)", re.DOTALL)
LINE = re.compile(r"# (\S+\.py), below ([^\n]+)\n(.*)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code: of a file of its own, to put below a line of another, or to run."""

    section: str
    file: str = ""
    below: str = ""
    code: str = ""


def blocks() -> Iterator[Block]:
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        for code in re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL):
            if match := LINE.fullmatch(code):
                yield Block(title, *match.groups())
            elif match := FILE.fullmatch(code):
                yield Block(title, match[1], "", match[2])
            else:
                yield Block(title, code=code)


BLOCKS = list(blocks())
SECTIONS = ["An activation", "An operation", "A bound", "A branching rule", "A loss", "A data set", "A domain"]
# for each registry, the tests that run over it, and the names by which they know what the page adds
CONFORMANCE = {
    "network/test_activations.py": "softsign",
    "bounds/test_curved.py": "softsign",
    "verify/test_curved.py": "softsign",
    "load/test_torch.py": "Softsign or every_supported",
    "load/test_onnx.py": "test_operation and (CumSum or Softsign) or every_supported",
    "load/test_conformance.py": "CumSum or softsign or left_out",
    "bounds/test_bounds.py": "halves",
    "branching/test_branching.py": "test_every_rule and steepest",
    "train/losses/test_losses.py": "small-ibp",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests with what the page adds, and nothing else."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in BLOCKS:
        if not block.file:
            continue
        path = folder / (block.file if block.file.startswith("tests/") else f"src/{block.file}")
        if not block.below:
            assert not path.exists(), f"{block.file} is there already"
            path.write_text(block.code)
            continue
        lines = path.read_text().splitlines(keepends=True)
        where = [i for i, line in enumerate(lines) if line.strip().startswith(block.below)]
        assert len(where) == 1, f"{block.file} has {len(where)} lines that begin with {block.below}"
        lines.insert(where[0] + 1, block.code)
        path.write_text("".join(lines))
    return folder


def run(copy: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = environment() | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=600, check=False)


def test_the_page_has_all_it_promises() -> None:
    assert list(dict.fromkeys(block.section for block in BLOCKS)) == SECTIONS
    files = [block.file for block in BLOCKS if block.file and not block.below]
    lines = [block for block in BLOCKS if block.below and block.file.startswith("surebound/")]
    assert len(files) == 6 and [len(block.code.splitlines()) for block in lines] == [1] * 7  # an operation is imported
    assert [block.section for block in lines].count("An operation") == 2


@pytest.mark.slow
@pytest.mark.parametrize("section", [s for s in SECTIONS if any(b.section == s and not b.file for b in BLOCKS)])
def test_what_the_page_tries_works(copy: Path, tmp_path: Path, section: str) -> None:
    for block in BLOCKS:
        if block.section == section and not block.file:
            ended = run(copy, "-c", block.code, cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tests", CONFORMANCE)
def test_the_tests_of_its_registry_pass_on_it(copy: Path, tests: str) -> None:
    chosen = CONFORMANCE[tests]
    ended = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{tests}", "-k", chosen, cwd=copy)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) >= 2  # type: ignore[index]


@pytest.mark.slow
def test_style_and_types_are_kept(copy: Path) -> None:
    """Of the files that the page shows, by the settings of the package."""
    files = [f"src/{block.file}" for block in BLOCKS if block.file and not block.below]
    for tool in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        ended = run(copy, "-m", *tool, *files, cwd=copy)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_help_names_it(copy: Path) -> None:
    for command, names in {"verify": ("steepest",), "certify": ("steepest", "stripes"), "attack": ("stripes",)}.items():
        shown = run(copy, "-m", "surebound", command, "--help", cwd=copy).stdout
        assert [name for name in names if name not in shown] == []
