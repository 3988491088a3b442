"""Runs the command on hostile files, each in a process with little memory, and shows how it ended.

    python tests/hostile.py [--only NAME …] [--keep FOLDER]

Every file must end within 15 seconds with a verdict, or with one sentence and exit code 2. Exits with code 1 if one
did not. The quick ones are part of the default test run, too (test_hostile.py).
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import hostile_graphs
import hostile_networks
import hostile_others
import hostile_properties
import hostile_sizes
from commands import SUREBOUND, environment
from hostile_case import REFUSED, Case

CASES: list[Case] = [
    case
    for module in (hostile_networks, hostile_sizes, hostile_graphs, hostile_properties, hostile_others)
    for case in module.CASES
]
MEMORY = 6_000_000 * 1024  # bytes of addresses, `ulimit -v 6000000`
TIMEOUT, MOST = 10, 15  # seconds: what the command is given, and when it must have ended
PATIENCE = 60  # seconds after which it is killed


@dataclass(frozen=True)
class Ending:
    """How the command ended."""

    code: int
    seconds: float
    megabytes: float
    out: str
    err: str

    def complaints(self, case: Case) -> list[str]:
        """What is wrong with it."""
        lines = self.err.strip().splitlines()
        found = []
        if self.seconds > MOST:
            found.append(f"took {self.seconds:.1f} s")
        if self.code < 0 or self.code > 2:
            found.append(f"ended with code {self.code}")
        if "Traceback" in self.err or (self.code != 0 and len(lines) != 1):
            found.append(f"{len(lines)} lines on stderr")
        if any(ord(c) < 32 or c in "\x7f\x9b\u202e\u200b\u2028" for c in self.out.replace("\n", "") + "".join(lines)):
            found.append("a control character in its output")
        if self.code == 2 and (REFUSED not in case.ends or case.says not in self.err):
            found.append("refused with another sentence")
        verdict = self.out.splitlines()[0] if self.out else ""
        if self.code == 0 and "printed" not in case.ends and verdict not in (*case.ends, "timeout"):
            found.append(f"the verdict {verdict!r}")
        return found


def run(case: Case, folder: Path) -> Ending:
    """Write the case's files into a folder and run the command on them."""
    args = case.write(folder)
    if args[0] == "verify":
        args = [*args, "--timeout", str(TIMEOUT)]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*SUREBOUND, *args],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    seconds = time.monotonic() - begin
    megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Ending(process.returncode, seconds, megabytes, out, err)


def main() -> int:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these cases, or those whose names begin so")
    parser.add_argument("--after", metavar="NAME", help="those that come after this one")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the files here")
    args = parser.parse_args()
    chosen = [case for case in CASES if not args.only or any(case.name.startswith(name) for name in args.only)]
    names = [case.name for case in chosen]
    chosen = chosen[names.index(args.after) + 1 :] if args.after else chosen
    bad = 0
    for case in chosen:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(args.keep or place) / case.name
            folder.mkdir(parents=True, exist_ok=True)
            ending = run(case, folder)
        wrong = ending.complaints(case)
        bad += bool(wrong)
        last = (ending.err.strip() or ending.out.strip()).splitlines()[-1:] or [""]
        verdict = ending.out.splitlines()[0] if ending.code == 0 and ending.out else f"exit {ending.code}"
        print(f"{case.name:<26}{ending.seconds:6.1f} s  {verdict:<9}  {last[0][:200]}")
        for complaint in wrong:
            print(f"{'':<26}    BAD: {complaint}")
        sys.stdout.flush()
    print(f"{len(chosen)} files, {bad} of them ended badly")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
