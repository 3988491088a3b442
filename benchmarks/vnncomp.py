"""Instances of the VNN-COMP benchmarks, one `surebound verify` process each, every counterexample replayed.

    python benchmarks/vnncomp.py --timeout 120 --threads 2 --log benchmarks/results/vnncomp.jsonl

Results go to the log as they come (--resume goes on with it); the report is written at the end, to
benchmarks/results/vnncomp.md. --only TEXT and --limit N choose some of the instances; give such a run another --out.
The counterexamples are checked by replay.py, which shares no code with surebound.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import replay
from common import (
    Instance,
    Record,
    Unavailable,
    command_text,
    instance_arguments,
    machine,
    markdown_table,
    phases_text,
    read_instances,
    run_instances,
    write_report,
)
from revisions import HERE, environment

ALLOWED = 0.5  # seconds by which a process may outlast its timeout
GRACE = 30.0  # seconds after the timeout at which a process is killed
VERDICTS = ("sat", "unsat", "unknown", "timeout")
DECIDED = ("sat", "unsat")


def main() -> int:
    args = instance_arguments(__doc__, "vnncomp")
    try:
        everything = read_instances(args.vnncomp)
    except Unavailable as reason:
        print(f"{reason}; --vnncomp names the folder that holds instances.csv", file=sys.stderr)
        return 2
    instances = [i for i in everything if args.only in i.name][: args.limit]
    where = machine(args.threads)
    records = run_instances(args, instances, run_instance, _line)
    write_report(args.out, report(records, len(everything), where))
    print(tally_text(records))
    print(overshoot_text(records))
    return int(any(r["wrong"] or r["replay"] or r["crash"] for r in records))


def run_instance(
    instance: Instance,
    timeout: float,
    threads: int | str,
    *,
    source: Path = HERE,
    options: Sequence[str] = (),
    by: str = "threads",
) -> Record:
    """Verify in a process of its own, then judge what it said. `source`: the src folder."""
    record, witness = verify_process(instance, timeout, threads, source=source, options=options, by=by)
    verdict = record["verdict"]
    return {
        "instance": instance.name,
        "benchmark": instance.benchmark,
        "network": instance.network,
        "property": instance.spec,
        "expected": instance.expected,
        "timeout": timeout,
        "threads": threads,
        "wrong": {verdict, instance.expected} == set(DECIDED),
        "replay": replay.check(instance.onnx, instance.vnnlib, witness) if verdict == "sat" else None,
        **record,
    }


def verify_process(
    instance: Instance,
    timeout: float,
    threads: int | str,
    *,
    source: Path = HERE,
    options: Sequence[str] = (),
    by: str = "threads",
) -> tuple[Record, str]:
    """What a `surebound verify` process answered and how long it took, and the counterexample it wrote.

    So many `threads` are threads, or workers, as `by` says.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, witness = Path(folder, "result.json"), Path(folder, "witness.txt")
        command = [sys.executable, "-m", "surebound", "verify", str(instance.onnx), str(instance.vnnlib)]
        command += ["--timeout", str(timeout), f"--{by}", str(threads), "--quiet", *options]
        command += ["--json", str(result), "--counterexample", str(witness)]
        env = environment(source)
        begin = time.perf_counter()
        verdict, crash = _launch(command, timeout + GRACE, env)
        wall = time.perf_counter() - begin
        details = json.loads(result.read_text()) if result.is_file() else {}
        text = witness.read_text() if witness.is_file() else ""
    if not crash and details.get("verdict") != verdict:
        crash = f"stdout says {verdict}, the JSON file says {details.get('verdict')}"
    record = {
        "verdict": verdict,
        "wall": round(wall, 3),
        "crash": crash,
        "seconds": details.get("seconds", 0.0),
        "subproblems": details.get("subproblems"),
        "branching": details.get("branching"),
        "phases": details.get("seconds_by_phase", {}),
        "reason": details.get("reason", ""),
    }
    return record, text


def _launch(command: Sequence[str], limit: float, env: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """The verdict on the first line of stdout, and what went wrong if the process did not end as it should."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=env)
    except subprocess.TimeoutExpired:
        return "none", f"killed after {limit:.0f} s"
    first = done.stdout.split("\n", 1)[0]
    verdict = first if first in VERDICTS else "none"
    if done.returncode == 0 and verdict != "none":
        return verdict, None
    last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    return verdict, f"exit code {done.returncode}, verdict {first!r}: {last[:200]}"


def solved(record: Record) -> bool:
    """Whether the verdict is the expected one and, for sat, its counterexample stands."""
    return bool(record["verdict"] == record["expected"] in DECIDED and not record["replay"] and not record["crash"])


def known(records: Sequence[Record]) -> list[Record]:
    """The results whose expected verdict is sat or unsat."""
    return [r for r in records if r["expected"] in DECIDED]


def easy_half(records: Sequence[Record]) -> list[Record]:
    """The first half of the instances with a known verdict, sorted by our wall time."""
    ordered = sorted(known(records), key=lambda r: float(r["wall"]))
    return ordered[: (len(ordered) + 1) // 2]


def tally_text(records: Sequence[Record]) -> str:
    """The counts that matter, in one sentence."""
    with_verdict = known(records)
    open_ones = [r for r in records if r["expected"] not in DECIDED]
    text = (
        f"solved {sum(map(solved, records))} of {len(with_verdict)} with a known verdict,"
        f" {sum(r['wrong'] for r in records)} wrong,"
        f" {sum(bool(r['replay']) for r in records)} of {sum(r['verdict'] == 'sat' for r in records)} replays failed,"
        f" {sum(bool(r['crash']) for r in records)} crashes"
    )
    if open_ones:
        decided = sum(r["verdict"] in DECIDED for r in open_ones)
        text += f"; {decided} of {len(open_ones)} without a known verdict decided"
    return text


def overshoot_text(records: Sequence[Record]) -> str:
    """By how much processes outlasted their timeouts, in one sentence."""
    if not records:
        return "no instances"
    over = sorted(((float(r["wall"]) - float(r["timeout"]), r["instance"]) for r in records), reverse=True)
    late = sum(seconds > ALLOWED for seconds, _ in over)
    most, which = over[0]
    return f"{late} of {len(over)} over their timeout by more than {ALLOWED:g} s; most: {most:+.2f} s, {which}"


def report(records: Sequence[Record], total: int, where: str) -> str:
    """The whole Markdown page."""
    half = easy_half(records)
    parts = ["# VNN-COMP instances\n"]
    if len(records) < total:
        parts.append(f"A part only: {len(records)} of {total} instances.\n")
    parts.append(f"**{tally_text(records).capitalize()}.**\n")
    if half:
        median = statistics.median(float(r["wall"]) for r in half)
        parts.append(
            f"Median wall time of the easy half: **{median:.2f} s**. (The instances with a known verdict, solved or"
            f" not, sorted by our wall time: the first {len(half)} of {len(known(records))}.)\n"
        )
    parts.append(
        "Wall times are of the whole process, imports and loading included; one instance after another. Every `sat` is"
        " replayed by [replay.py](../replay.py): inputs within the box without tolerance, outputs by onnxruntime.\n"
    )
    parts.append(f"Wall times beyond the timeout: {overshoot_text(records)}.\n")
    parts += [f"Machine: {where}\n", f"Command: `{command_text()}`\n"]
    parts += _troubles(records)
    parts += ["## By benchmark\n", _summary_table(records), "## Every instance\n", _full_table(records)]
    return "\n".join(parts)


def _troubles(records: Sequence[Record]) -> list[str]:
    lines = [f"- {_line(r)}" for r in records if r["wrong"] or r["replay"] or r["crash"]]
    return ["## Wrong, failed or crashed\n", "\n".join(lines) + "\n"] if lines else []


def _summary_table(records: Sequence[Record]) -> str:
    verdicts = ("sat", "unsat", "timeout", "unknown")
    header = ["benchmark", "instances", "known", "solved", *verdicts, "wrong", "median [s]", "sum [s]"]
    rows: list[list[object]] = []
    for name in dict.fromkeys(r["benchmark"] for r in records):
        mine = [r for r in records if r["benchmark"] == name]
        walls = [float(r["wall"]) for r in mine]
        counts = [sum(r["verdict"] == v for r in mine) for v in verdicts]
        times = [f"{statistics.median(walls):.2f}", f"{sum(walls):.0f}"]
        wrong = sum(r["wrong"] for r in mine)
        rows.append([name, len(mine), len(known(mine)), sum(map(solved, mine)), *counts, wrong, *times])
    return markdown_table(header, rows)


def _full_table(records: Sequence[Record]) -> str:
    names = ("benchmark", "network", "property", "expected")
    header = [*names, "verdict", "branching", "phases [s]", "subproblems", "wall [s]"]
    rows = [[*(r[name] for name in names), *_result_cells(r)] for r in records]
    return markdown_table(header, rows, left=7)


def _result_cells(record: Record) -> list[str]:
    subproblems = "–" if record["subproblems"] is None else f"{record['subproblems']:,}"
    branching = record["branching"] or "–"
    return [_verdict_cell(record), branching, phases_text(record["phases"]), subproblems, f"{record['wall']:.2f}"]


def _verdict_cell(record: Record) -> str:
    if record["wrong"]:
        return f"**{record['verdict']}: WRONG**"
    if record["crash"]:
        return "**crash**"
    return "**sat: replay failed**" if record["replay"] else str(record["verdict"])


def _line(record: Record) -> str:
    text = f"{record['instance']}: {record['verdict']} in {record['wall']:.1f} s, expected {record['expected']}"
    if record["wrong"]:
        text += "; WRONG"
    if record["replay"]:
        text += f"; REPLAY FAILED: {record['replay']}"
    if record["crash"]:
        text += f"; CRASH: {record['crash']}"
    return text + (f" ({record['reason']})" if record["reason"] else "")


if __name__ == "__main__":
    sys.exit(main())
