"""`make demo` and the examples, without the set-up."""

import re
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, commands_on_path, environment
from commands import surebound as run

from surebound.evaluate.store import Accuracies, Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder, and what it printed."""
    place = tmp_path_factory.mktemp("demo")
    done = run("demo", "--out", "shown", "--threads", 1, "--quiet", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    return place, done.stdout


def test_the_demo_trains_certifies_and_reports(demo: tuple[Path, str]) -> None:
    place, printed = demo
    commands = [line.split()[2] for line in printed.splitlines() if line.startswith("$ surebound")]
    assert commands == ["train", "certify", "report"]
    with Store(place / "shown" / "certify.sqlite", readonly=True) as store:
        (run_,) = store.runs().values()
        rows = store.rows(1)
    assert run_.options["branching"] == "upb" and len(rows) == len(run_.images) == 360
    found = Accuracies.of_rows(rows)
    assert found.standard > 0.85 and found.verified > 0.7 and found.undecided == 0
    accuracies, report = printed.splitlines()[-2:]
    shown = [float(share) / 100 for share in re.findall(r"([\d.]+)%", accuracies)]
    assert shown == pytest.approx([found.standard, found.robust, found.verified], abs=6e-4)
    assert report == "report shown/report.html"
    page = (place / "shown" / "report.html").read_text()
    assert f"{100 * found.verified:.1f}" in page and "<svg" in page


def test_a_second_demo_shows_the_same(demo: tuple[Path, str]) -> None:
    place, printed = demo
    again = run("demo", "--out", "shown", "--threads", 1, "--quiet", cwd=place)
    assert again.returncode == 0 and again.stdout.splitlines()[-2:] == printed.splitlines()[-2:]


def test_the_verify_example_shows_a_proof_and_a_counterexample(tmp_path: Path) -> None:
    env = environment(PATH=commands_on_path(tmp_path / "bin"))
    done = subprocess.run(
        ["bash", ROOT / "examples" / "verify.sh"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = {line: lines[i + 1] for i, line in enumerate(lines[:-1]) if line.startswith("$ surebound verify")}
    assert list(first.values()) == ["unsat", "sat"]
    assert "((X_0 " in done.stdout and "Traceback" not in done.stderr
