"""The lists of mutants still fit the code, and their runner tells killed from survived."""

import ast
from pathlib import Path

import pytest
from mutate import LISTS, ROOT, Mutant, Runner, read_lists, table

MUTANTS = read_lists()


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    names = [m.name for m in MUTANTS]
    assert len(set(names)) == len(names) >= 60
    assert {m.file.split("/")[0] for m in MUTANTS} >= {"bounds", "load", "network", "verify"}
    assert all(m.why and m.tests and m.old != m.new for m in MUTANTS)


def test_no_mutant_is_stale() -> None:
    """After a change of the code, its entry in `tests/mutants/*.toml` has to follow."""
    stale = {m.name: m.stale(ROOT / "src" / "surebound") for m in MUTANTS}
    assert {name: why for name, why in stale.items() if why} == {}


def test_every_mutant_is_still_python() -> None:
    for m in MUTANTS:
        ast.parse((ROOT / "src" / "surebound" / m.file).read_text(encoding="utf-8").replace(m.old, m.new))


def test_the_tests_of_every_mutant_exist() -> None:
    defined = {
        path.relative_to(LISTS.parent).as_posix(): {
            node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")
        }
        for path in LISTS.parent.rglob("test_*.py")
    }
    for m in MUTANTS:
        for test in m.tests:
            file, _, name = test.partition("::")
            assert file in defined, m.name
            assert not name or name.partition("[")[0] in defined[file], m.name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package of one function, and its test."""
    test = "from toy import larger\n\ndef test_larger():\n    assert larger(1, 2) == larger(2, 1) == 2\n"
    files = {
        "src/toy/__init__.py": "def larger(a, b):\n    return a if a > b else b\n",
        "tests/test_toy.py": test,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_the_runner_tells_fates_apart(project: Path) -> None:
    def mutant(name: str, old: str, new: str) -> Mutant:
        tests = ("test_toy.py::test_larger",)
        return Mutant(name=name, file="__init__.py", old=old, new=new, why="it is wrong", tests=tests)

    runner = Runner(root=project, package="toy")
    assert runner.complaint(["test_toy.py"]) == ""
    results = [
        runner.run(m)
        for m in (
            mutant("turned", "a > b", "a < b"),
            mutant("ties", "a > b", "a >= b"),
            mutant("gone", "a == b", "a != b"),
            mutant("twice", "a", "b"),
            mutant("broken", "def larger", "def"),
        )
    ]
    assert [r.fate for r in results] == ["killed", "survived", "stale", "stale", "error"]
    assert results[0].by == "test_toy.py::test_larger"
    assert "occurs 0 times" in results[2].by
    page = table(results)
    assert "5 mutants: 1 killed, 0 shown to be equivalent, 4 otherwise." in page
    assert "| turned | it is wrong | `test_toy.py::test_larger` |" in page
    assert "| ties | it is wrong | **survived** |" in page


def test_what_is_said_to_be_equivalent_must_survive(project: Path) -> None:
    def fate(new: str) -> str:
        mutant = Mutant(
            name="it",
            file="__init__.py",
            old="a > b",
            new=new,
            why="it is wrong",
            tests=("test_toy.py",),
            equivalent="equal numbers are the same",
        )
        return Runner(root=project, package="toy").run(mutant).fate

    assert (fate("a >= b"), fate("a < b")) == ("equivalent", "error")


def test_tests_that_fail_anyway_are_refused(project: Path) -> None:
    (project / "tests" / "test_toy.py").write_text("def test_larger():\n    assert False\n", encoding="utf-8")
    assert "fail without any mutant" in Runner(root=project, package="toy").complaint(["test_toy.py"])
