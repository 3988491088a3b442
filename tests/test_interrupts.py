"""Ctrl-C and SIGTERM, as the shell sees them: the exit code, what is kept, and that nothing else is left or printed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from classifiers import small_digits, write
from commands import environment, write_hard, write_tiny

from surebound.evaluate.store import Row, Run, Store
from surebound.train.checkpoint import load

pytestmark = pytest.mark.slow

INT, TERM = int(signal.SIGINT), int(signal.SIGTERM)
IMAGES = ["--dataset", "digits", "--eps", "0.05", "--first", "120"]
TRAIN = ["train", "--preset", "digits-ibp-r-cpu", "--out", "out", "--quiet", "--set", "validation.images=10"]
REPRODUCE = ["reproduce", "table1", "--scale", "smoke", "--out", "out", "--workers", "2", "--quiet"]

# An import that never ends, in processes whose command line has a word in it.
STALL = """
import os, sys, time

class Stall:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STALL_AT"] and os.environ["STALL_IN"] in " ".join(sys.orig_argv):
            open(f"{os.environ['STALLED']}.{os.getpid()}", "w").close()
            time.sleep(300)

sys.meta_path.insert(0, Stall())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks and properties, a training folder `run`, and a module that stalls imports."""
    place = tmp_path_factory.mktemp("interrupts")
    (place / "run").mkdir()
    write(small_digits(), place / "run")
    write_hard(place)
    write_tiny(place)
    (place / "stall").mkdir()
    (place / "stall" / "sitecustomize.py").write_text(STALL)
    return place


def start(command: list[str], cwd: Path, *, ignored: bool = False, **extra: str) -> subprocess.Popen[str]:
    """A process in a group of its own, which hears Ctrl-C unless it is `ignored`."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, stdout and stderr; nothing of its group is left."""
    out, err = process.communicate(timeout=120)
    give_up = time.monotonic() + 30
    while _alive_in_group(process.pid):
        assert time.monotonic() < give_up, "a process of the group is left"
        time.sleep(0.02)
    for word in ("Traceback", "leaked", "Exception", "resource_tracker"):
        assert word not in err, err
    return process.returncode, out, err


def _alive_in_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def patched(patch: str, arguments: list[str], cwd: Path, *, ignored: bool = False) -> tuple[int, str, str]:
    """Run the command after a patch that calls `strike()` at some moment, which sends the signal."""
    number = next(int(line.split()[1]) for line in patch.splitlines() if line.startswith("#signal"))
    lines = ["import os, signal, sys", f"def strike(): os.kill(os.getpid(), {number})", patch]
    lines += ["from surebound.__main__ import entry", "entry()"]
    return ended(start([sys.executable, "-c", "\n".join(lines), *arguments], cwd, ignored=ignored))


# ── While something is imported ──


@pytest.mark.parametrize(
    ("number", "module", "arguments"),
    [
        (INT, "numpy", ["verify", "hard.onnx", "hard.vnnlib"]),
        (TERM, "numpy", ["report", "run"]),
        (INT, "torch", ["verify", "hard.onnx", "hard.vnnlib", "--quiet", "--json", "report.json"]),
        (TERM, "torch", ["verify", "hard.onnx", "hard.vnnlib", "--quiet", "--json", "report.json"]),
        (INT, "torch", ["inspect", "hard.onnx", "hard.vnnlib"]),
        (TERM, "torch", ["attack", "run", *IMAGES]),
        (INT, "torch", ["certify", "run", *IMAGES, "--store", "early.sqlite"]),
        (TERM, "torch", TRAIN),
        (INT, "torch", ["demo", "--out", "out"]),
        (TERM, "torch", REPRODUCE),
    ],
)
def test_during_imports(number: int, module: str, arguments: list[str], folder: Path, tmp_path: Path) -> None:
    for name in ("run", "hard.onnx", "hard.vnnlib"):
        (tmp_path / name).symlink_to(folder / name)
    command = [sys.executable, "-m", "surebound", *arguments]
    process = _stalled(command, tmp_path, folder, at=module, inside=arguments[0])
    os.killpg(process.pid, number)
    code, out, err = ended(process)
    assert code == 128 + number
    if "--json" in arguments:
        assert (out, err) == ("unknown\n", "")
        record = json.loads((tmp_path / "report.json").read_text())
        assert (record["verdict"], record["reason"]) == ("unknown", "interrupted")
        assert set(record["seconds_by_phase"]) == {"load", "attack", "import"}
        assert 0 < sum(record["seconds_by_phase"].values()) <= record["seconds"]
    else:
        assert err.rstrip().endswith(("surebound: interrupted", "subproblems (interrupted)"))
        begun = {"demo": f"$ surebound train --preset {TRAIN[2]} --out out --resume\n", "verify": "unknown\n"}
        assert out == begun.get(arguments[0], "")


def test_the_time_is_up_during_an_import(folder: Path, tmp_path: Path) -> None:
    """The process ends by itself, although nothing in it looks at the clock."""
    command = [sys.executable, "-m", "surebound", "verify", str(folder / "hard.onnx"), str(folder / "hard.vnnlib")]
    command += ["--timeout", "2", "--json", "report.json", "--quiet"]
    assert ended(_stalled(command, tmp_path, folder, at="torch", inside="verify")) == (0, "timeout\n", "")
    record = json.loads((tmp_path / "report.json").read_text())
    assert (record["verdict"], record["reason"]) == ("timeout", "the time ran out while importing torch")
    assert record["seconds"] >= 2
    assert 0 < sum(record["seconds_by_phase"].values()) <= record["seconds"]


def _stalled(command: list[str], cwd: Path, folder: Path, *, at: str, inside: str) -> subprocess.Popen[str]:
    """A process that is, or whose workers are, in the middle of an import."""
    stalled = cwd / "stalled"
    path = os.pathsep.join([str(folder / "stall"), environment()["PYTHONPATH"]])
    process = start(command, cwd, PYTHONPATH=path, STALL_AT=at, STALL_IN=inside, STALLED=str(stalled))
    wait_for(lambda: any(cwd.glob("stalled.*")), process)
    return process


@pytest.mark.parametrize(("number", "whole"), [(INT, True), (TERM, False)])
@pytest.mark.parametrize(
    "arguments",
    [["certify", "run", *IMAGES, "--store", "s.sqlite", "--workers", "2", "--json", "r.json"], REPRODUCE],
    ids=["certify", "reproduce"],
)
def test_while_workers_import_torch(
    arguments: list[str], number: int, whole: bool, folder: Path, tmp_path: Path
) -> None:
    """Whether the signal reaches the whole group, as Ctrl-C does, or the command alone."""
    (tmp_path / "run").symlink_to(folder / "run")
    command = [sys.executable, "-m", "surebound", *arguments]
    process = _stalled(command, tmp_path, folder, at="torch", inside="surebound.work")
    (os.killpg if whole else os.kill)(process.pid, number)
    code, out, err = ended(process)
    assert (code, out) == (128 + number, "")
    assert "interrupted" in err and "--resume goes on" in err and err.count("\n") == 1
    if arguments[0] == "certify":
        record = json.loads((tmp_path / "r.json").read_text())
        assert (record["images"], record["interrupted"], record["seconds_by_phase"]) == (0, True, {})


# ── In the middle of the work ──

AT_FIRST_ROWS = """
from surebound.evaluate.store import Store
add = Store.add
def striking(self, run, *rows):
    add(self, run, *rows)
    strike()
Store.add = striking
"""


@pytest.mark.parametrize(("workers", "number"), [("1", INT), ("2", TERM)])
def test_certify_keeps_its_rows_and_sums_them_up(workers: str, number: int, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(folder / "run")
    arguments = ["certify", "run", *IMAGES, "--store", "s.sqlite", "--json", "r.json", "--workers", workers, "--quiet"]
    code, out, err = patched(f"#signal {number}{AT_FIRST_ROWS}", arguments, tmp_path)
    assert code == 128 + number
    with Store(tmp_path / "s.sqlite", readonly=True) as results:
        (run,) = results.runs()
        rows = results.rows(run)
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["images"] == sum(record["outcomes"].values()) == len(rows)
    assert 0 < len(rows) < 120 and record["images_asked"] == 120
    done = f"interrupted after {len(rows)} of 120 images; what is done is in 's.sqlite'"
    assert err == f"{done}, and --resume goes on from there\n"
    assert out.startswith("standard ") and f" of {len(rows)}, classified right)" in out
    assert (record["interrupted"], record["run"]) == (True, run)
    assert record["seconds_by_phase"].keys() == {name for row in rows for name in row.phases} >= {"attack"}


AT_SEARCH = """
from surebound.verify.clock import Clock
report = Clock.report
def striking(self, phase, **counts):
    report(self, phase, **counts)
    if counts.get("subproblems", 0) > 100:
        strike()
Clock.report = striking
"""


@pytest.mark.parametrize("number", [INT, TERM])
def test_verify_says_what_it_knows_and_where_the_time_went(number: int, folder: Path, tmp_path: Path) -> None:
    arguments = ["verify", str(folder / "hard.onnx"), str(folder / "hard.vnnlib"), "--json", "r.json"]
    code, out, err = patched(f"#signal {number}{AT_SEARCH}", arguments, tmp_path)
    assert (code, out) == (128 + number, "unknown\n")
    assert err.endswith("(interrupted)\n")
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["subproblems"] > 100 and record["lower_bound"] < 0
    phases = record["seconds_by_phase"]
    assert phases.keys() >= {"import", "load", "attack", "root", "bounding", "branching", "queue"}
    assert min(phases.values()) >= 0 and 0 < sum(phases.values()) <= record["seconds"]


def test_an_ignored_interrupt_stays_ignored(folder: Path, tmp_path: Path) -> None:
    """A shell starts background jobs so; SIGTERM is heard in any case."""
    patch = AT_SEARCH.replace("> 100", ">= 0")
    arguments = ["verify", str(folder / "tiny.onnx"), str(folder / "holds.vnnlib"), "--quiet"]
    assert patched(f"#signal {INT}{patch}", arguments, tmp_path, ignored=True) == (0, "unsat\n", "")
    assert patched(f"#signal {TERM}{patch}", arguments, tmp_path, ignored=True) == (143, "unknown\n", "")


AT_EIGHTH_STEP = """
from surebound.train.loop import Loop
step = Loop._step
def striking(self, number, *rest):
    if number == 7:
        strike()
    step(self, number, *rest)
Loop._step = striking
"""


@pytest.mark.parametrize(("number", "arguments"), [(TERM, TRAIN), (INT, ["demo", "--out", "out", "--quiet"])])
def test_training_ends_its_step_and_saves_it(arguments: list[str], number: int, tmp_path: Path) -> None:
    code, _, err = patched(f"#signal {number}{AT_EIGHTH_STEP}", arguments, tmp_path)
    assert (code, err) == (128 + number, "interrupted; 'surebound train --out out --resume' goes on\n")
    assert load(tmp_path / "out" / "checkpoint.safetensors").step == 8


def test_training_in_the_background_ignores_the_interrupt(tmp_path: Path) -> None:
    patch = AT_EIGHTH_STEP.replace("strike()", "strike(); os.kill(os.getpid(), signal.SIGINT)")
    last = f"#signal {INT}{patch}\nLoop._end_epoch = lambda *_: os._exit(42)"
    assert patched(last, TRAIN, tmp_path, ignored=True)[0] == 42


def test_training_stops_at_once_the_second_time(tmp_path: Path) -> None:
    patch = AT_EIGHTH_STEP.replace("strike()", "strike(); strike()")
    code, _, err = patched(f"#signal {TERM}{patch}", TRAIN, tmp_path)
    assert (code, err) == (143, "interrupted; 'surebound train --out out --resume' goes on\n")
    assert not (tmp_path / "out" / "checkpoint.safetensors").exists()


def test_a_page_is_whole(tmp_path: Path) -> None:
    run = Run(model="m", model_sha256="", dataset="digits", shape=(1, 8, 8), classes=("0", "1"), eps="0", images=(0,))
    with Store(tmp_path / "s.sqlite") as store:
        store.add(store.begin(run), Row(image=0, label=0, predicted=0, outcome="verified", stage="ibp"))
    patch = f"#signal {TERM}\nreplace = os.replace\nos.replace = lambda *names: (strike(), replace(*names))"
    code, out, err = patched(patch, ["report", "s.sqlite", "-o", "page.html"], tmp_path)
    assert (code, out, err) == (143, "page.html\n", "surebound: interrupted\n")
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")
    assert {file.name for file in tmp_path.iterdir()} == {"page.html", "s.sqlite"}


# ── The module itself ──


def program(*lines: str) -> tuple[int, str, str]:
    text = "\n".join(["import os, signal, sys", "from surebound import interrupts", *lines])
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["interrupts.listen()", "HIT", "print('on')"], (143, "", "surebound: interrupted\n")),
        (["HIT", "print('on')"], (-15, "", "")),  # who does not listen has the system's handler
        (
            ["interrupts.listen()", "with interrupts.leaving(lambda: print('told', flush=True)): HIT"],
            (143, "told\n", ""),
        ),
        (
            [
                "interrupts.listen()",
                "def finish(): HIT; print('on', flush=True)",
                "with interrupts.leaving(finish): HIT",
            ],
            (143, "", "surebound: interrupted\n"),
        ),
        (
            [
                "interrupts.listen()",
                "try:",
                "  with interrupts.raising():",
                "    try: HIT",
                "    except KeyboardInterrupt: raise ImportError('what a library made of it')",
                "except KeyboardInterrupt: print(interrupts.code())",
            ],
            (0, "143\n", ""),
        ),
        (
            [
                "interrupts.listen()",
                "try:",
                "  with interrupts.raising(): raise ImportError('a mistake')",
                "except ImportError as error: print(error, interrupts.code())",
            ],
            (0, "a mistake 130\n", ""),
        ),
        (
            [
                "interrupts.listen()",
                "class Freed:",
                "  def __del__(self): HIT",
                "try:",
                "  with interrupts.raising():",
                "    Freed()",
                "    import time",
                "    time.sleep(30)",
                "    print('lost')",
                "except KeyboardInterrupt: print('came again')",
            ],
            (0, "came again\n", ""),
        ),
        (
            [
                "interrupts.listen()",
                "try:",
                "  with interrupts.raising():",
                "    with interrupts.held():",
                "      HIT",
                "      print('whole')",
                "    print('on')",
                "except KeyboardInterrupt: print('then')",
            ],
            (0, "whole\nthen\n", ""),
        ),
        (
            ["interrupts.listen()", "with interrupts.held():", "  HIT", "  HIT", "  print('on')"],
            (143, "", "surebound: interrupted\n"),
        ),
        (
            [
                "interrupts.listen()",
                "with interrupts.noting() as interrupted:",
                "  print(interrupted())",
                "  HIT",
                "  print(interrupted())",
                "  signal.raise_signal(signal.SIGINT)",  # another signal, as torchrun sends one after Ctrl-C
                "  try: HIT",
                "  except KeyboardInterrupt: print('enough')",
            ],
            (0, "False\nTrue\nenough\n", ""),
        ),
        (
            [
                "interrupts.listen()",
                "try:",
                "  with interrupts.noting() as interrupted: HIT",
                "except KeyboardInterrupt: print('at once')",
            ],
            (0, "at once\n", ""),
        ),
        (
            [
                "import subprocess",
                "with interrupts.shielded():",
                "  child = subprocess.Popen([sys.executable, '-c', 'import signal, sys; sys.stdin.read();"
                " print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))'],"
                " stdin=subprocess.PIPE, stdout=subprocess.PIPE)",
                "child.send_signal(signal.SIGTERM); child.send_signal(signal.SIGINT)",
                "print(child.communicate()[0].decode(), child.returncode)",
                "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
            ],
            (0, "[<Signals.SIGINT: 2>, <Signals.SIGTERM: 15>]\n 0\nset()\n", ""),
        ),
    ],
)
def test_what_a_signal_does(lines: list[str], expected: tuple[int, str, str]) -> None:
    hit = "signal.raise_signal(signal.SIGTERM)"
    assert program(*(line.replace("HIT", hit) for line in lines)) == expected
