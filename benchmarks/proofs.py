"""What proofs cost: `surebound verify` without and with --proof, and `surebound check`, on instances that are unsat.

    python benchmarks/proofs.py --timeout 120 --threads 2

Three processes an instance, one after the other. Results go to the log as they come (--resume goes on with it); the
report is written at the end, to benchmarks/results/proofs.md. The exit code is 1 if any proof is not valid.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import (
    Instance,
    Record,
    Unavailable,
    command_text,
    instance_arguments,
    machine,
    markdown_table,
    read_instances,
    run_instances,
    write_report,
)
from vnncomp import verify_process


def main() -> int:
    args = instance_arguments(__doc__, "proofs")
    try:
        everything = read_instances(args.vnncomp)
    except Unavailable as reason:
        print(f"{reason}; --vnncomp names the folder that holds instances.csv", file=sys.stderr)
        return 2
    instances = [i for i in everything if args.only in i.name and i.expected != "sat"][: args.limit]
    where = machine(args.threads)
    records = run_instances(args, instances, run_instance, _line)
    write_report(args.out, report(records, where))
    print(summary(records))
    return int(any(r["proved"] and r["answer"] != "valid" for r in records))


def run_instance(instance: Instance, timeout: float, threads: int) -> Record:
    """Verify; if it is proved, again with a proof, which is then checked."""
    record: Record = {"instance": instance.name, "timeout": timeout, "threads": threads, "proved": False}
    found = verify_process(instance, timeout, threads)[0]
    record |= {"verdict": found["verdict"], "without": found["wall"], "with_verdict": "", "answer": "", "check": None}
    if found["verdict"] != "unsat":
        return record
    with tempfile.TemporaryDirectory() as folder:
        proof = Path(folder, "proof")
        again = verify_process(instance, timeout, threads, options=["--proof", str(proof)])[0]
        record |= {"with": again["wall"], "with_verdict": again["verdict"], "subproblems": again["subproblems"]}
        if again["verdict"] == "unsat":
            record |= {"proved": True} | _check(instance, proof, threads)
    return record


def _check(instance: Instance, proof: Path, threads: int) -> Record:
    if not proof.is_file():
        return {"answer": "no proof was written", "check": None}
    result = proof.with_suffix(".json")
    command = [sys.executable, "-m", "surebound", "check", str(instance.onnx), str(instance.vnnlib), str(proof)]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--quiet", "--json", str(result)],
        capture_output=True,
        text=True,
        check=False,
        env=threads_environment(threads),
    )
    seconds = time.perf_counter() - begin
    details = json.loads(result.read_text()) if result.is_file() else {}
    answer = (done.stdout or done.stderr).strip().split("\n", 1)[0]
    return {
        "answer": answer,
        "check": round(seconds, 3),
        "bytes": proof.stat().st_size,
        "leaves": details.get("leaves"),
        "claims": details.get("claims"),
        "slack": details.get("slack"),
    }


def threads_environment(threads: int) -> dict[str, str]:
    """For NumPy's BLAS."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


def _line(r: Record) -> str:
    if not r["proved"]:
        return f"{r['instance']}: {r['verdict']} without, {r['with_verdict'] or 'not tried'} with a proof"
    return (
        f"{r['instance']}: {r['without']:.2f} s, with a proof {r['with']:.2f} s, check {r['check'] or 0:.2f} s, "
        f"{r.get('bytes', 0):,} bytes, {r['answer']}"
    )


def _both(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["proved"] and r["verdict"] == "unsat" and r["answer"] == "valid"]


def summary(records: Sequence[Record]) -> str:
    """Ratios over what was proved either way, and checked."""
    both = _both(records)
    valid = sum(r["answer"] == "valid" for r in records)
    proved = sum(r["proved"] for r in records)
    text = f"{valid} of {proved} proofs are valid"
    if not both:
        return text
    mean = statistics.geometric_mean
    written, checked = mean(r["with"] / r["without"] for r in both), mean(r["check"] / r["without"] for r in both)
    size = statistics.median(r["bytes"] for r in both)
    return (
        f"{text}; geometric means: verify with a proof ÷ without {written:.2f}, check ÷ verify {checked:.2f}; "
        f"median size {size / 1e6:.3f} MB"
    )


def report(records: Sequence[Record], where: str) -> str:
    """The page."""
    rows = [
        [
            r["instance"],
            f"{r['without']:.2f}" if r["verdict"] == "unsat" else r["verdict"],
            f"{r['with']:.2f}" if r["proved"] else r["with_verdict"],
            "" if r["check"] is None else f"{r['check']:.2f}",
            f"{r['bytes']:,}" if r.get("bytes") else "",
            f"{r['leaves']:,}" if r.get("leaves") else "",
            r["answer"],
        ]
        for r in records
    ]
    columns = ["instance", "verify, s", "with --proof, s", "check, s", "bytes", "leaves", "check says"]
    table = markdown_table(columns, rows)
    return f"""# Proofs

{command_text()}

{where}

Wall time of whole processes, imports and reading included. A leaf is a bound that the checker evaluates: one for each
claim about a neuron, and those of the trees.

{summary(records)}.

{table}
"""


if __name__ == "__main__":
    sys.exit(main())
