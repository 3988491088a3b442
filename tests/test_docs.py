"""The documentation: links lead somewhere, commands parse, names exist, and the site builds."""

import re
import shlex
import subprocess
import sys
import unicodedata
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import environment

from surebound.cli import COMMANDS
from surebound.cli.main import build_parser
from surebound.evaluate.evidence import Evidence
from surebound.evaluate.store import OUTCOMES, STAGES, Row, Run
from surebound.train import LOSSES
from surebound.train.config import OptimiserConfig, Schedule

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES]
PIECES = {";", "&&", "||", "|", "&", ">", ">>", "2>", "<"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def prose(path: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[str]:
    """The blocks of code that are not in another language than the shell's."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in ("", "sh", "bash", "console")]


# ---- links


def links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "code", prose(path))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(path: Path) -> set[str]:
    """The names of headings that GitHub and mkdocs agree on."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(path), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        github = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        ascii_ = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        mkdocs = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_).strip().lower())
        if github == mkdocs:
            found.add(github)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for link in links(path):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"^  - .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(menu) == [page.name for page in PAGES]


# ---- commands


def command_lines(path: Path) -> Iterator[str]:
    """Lines of code that call surebound, continued ones joined, without a prompt."""
    for block in blocks(path):
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            line = line.strip().removeprefix("$ ")
            if re.search(r"(^|[ =;&|])(-m )?surebound [a-z]", line) and not line.startswith("#"):
                yield line


def calls(line: str) -> Iterator[list[str]]:
    """The arguments of every call of surebound in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words = [*lexer, ";"]
    while words:
        end = next(i for i, word in enumerate(words) if word in PIECES)
        call, words = words[:end], words[end + 1 :]
        while call and (re.fullmatch(r"\w+=.*", call[0]) or call[0] in ("time", "nohup")):
            call = call[1:]
        if call[:1] == ["surebound"]:
            yield call[1:]
        for before in ("-m", "--"):  # what runs it
            if before in call and call[call.index(before) + 1 :][:1] == ["surebound"]:
                yield call[call.index(before) + 2 :]


def test_calls_are_found_in_lines_of_shell() -> None:
    line = "A=1 surebound demo --out d && torchrun --n 2 -m surebound train --out r > log  # surebound x"
    assert list(calls(line)) == [["demo", "--out", "d"], ["train", "--out", "r"]]
    assert list(calls("ray symmetric-run --n 2 -- surebound demo")) == [["demo"]]
    assert list(calls("sqlite3 surebound.db 'SELECT 1; surebound verify'")) == []


def options(command: str) -> set[str]:
    parser = ArgumentParser()
    COMMANDS[command].configure(parser)
    return {option for action in parser._actions for option in action.option_strings}


LINES = [pytest.param(line, id=f"{path.name}: {line[:60]}") for path in PAGES for line in command_lines(path)]


@pytest.mark.parametrize("line", LINES)
def test_command_lines_parse(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    if re.search(r"\[-|\.\.\.|…\]|\(--", line):  # a synopsis: its options exist
        command = re.search(r"surebound ([a-z]\w*)", line)
        assert command and set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) <= options(command[1])
        return
    found = list(calls(line))
    assert found
    for arguments in found:
        try:
            build_parser().parse_args(arguments)
        except SystemExit as error:
            if error.code:
                pytest.fail(f"{line}: {capsys.readouterr().err.strip()}")


def test_command_lines_are_there() -> None:
    assert len(LINES) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_pages(command: str) -> None:
    assert any(re.search(rf"`?surebound {command}\b", page.read_text()) for page in PAGES)


# ---- names


def test_modules_that_the_method_points_to_exist() -> None:
    found = re.findall(r"`([a-z_0-9/]+\.py)`", (ROOT / "docs/method.md").read_text())
    assert len(found) > 20
    assert [path for path in found if not (ROOT / "src/surebound" / path).is_file()] == []


def test_settings_that_the_method_names_exist() -> None:
    known: set[str] = set()

    def walk(of: object, prefix: str) -> None:
        assert is_dataclass(of)
        for field in fields(of):
            known.add(f"{prefix}{field.name}")
            if is_dataclass(field.default):
                walk(field.default, f"{prefix}{field.name}.")

    walk(Schedule, "schedule.")
    walk(OptimiserConfig, "optimiser.")
    for loss in LOSSES.values():
        walk(loss, "loss.")
    named = re.findall(r"`((?:schedule|optimiser|loss)\.[\w.]+)", (ROOT / "docs/method.md").read_text())
    assert len(named) > 10 and set(named) <= known


def test_the_store_is_documented() -> None:
    text = (ROOT / "docs/certify.md").read_text()
    columns = {f.name for f in fields(Row)} - {"counter", "proof"} | {"run", "clean", "counterexample", "adversarial"}
    columns |= {f.name for f in fields(Evidence)} - {"refused"}
    records = {f.name for f in fields(Run)} - {"notes"}
    assert [word for word in (*columns, *OUTCOMES, *STAGES) if f"`{word}`" not in text] == []
    assert [word for word in records if word != "model" and f"`{word}`" not in text] == []


# ---- the site


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        html = (site / f"{page.stem}.html").read_text()
        assert re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", html) == []
        assert "../README.md" not in html
