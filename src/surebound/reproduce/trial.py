"""The first steps of every training, to see that it runs and how long it would take; nothing is kept."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surebound.reproduce.experiment import Plan, Summary, check, cores, engine, failure
from surebound.reproduce.job import Job
from surebound.reproduce.jobs import JobEnded, OnStatus, run_jobs
from surebound.reproduce.lock import locked
from surebound.reproduce.scales import SETTINGS, Cell


def try_trainings(plan: Plan, on_status: OnStatus) -> Summary:
    """Every method and radius with the first seed, for a few steps."""
    assert plan.steps is not None
    place = plan.place
    check(place)
    cells = [Cell(setting, method) for method in plan.methods for setting in plan.settings]
    over: dict[Cell, JobEnded] = {}

    def then(ended: JobEnded) -> tuple[Job, ...]:
        over[ended.job.cell] = ended
        return ()

    with locked(place.path) as lock, _passing(place.trials):
        jobs = [Job(kind="try", cell=cell, steps=plan.steps) for cell in cells]
        run_jobs(engine(plan, lock, cores()), place, jobs, then=then, total=len(jobs), on_status=on_status)
    lines = ["| ε | method | steps | loss | seconds per step | whole training [h] |", "|---|---|--:|--:|--:|--:|"]
    for cell in cells:
        found = over[cell].result
        if found is not None:
            values = f"{found['steps']} | {found['loss']:.4g} | {found['pace']:.3g} | {found['whole'] / 3600:.3g}"
            lines.append(f"| {SETTINGS[cell.setting]} | {cell.method} | {values} |")
    failures = tuple(failure(ended) for ended in over.values() if ended.result is None)
    return Summary(markdown="\n".join(lines) + "\n", files=(), failures=failures)


@contextmanager
def _passing(folder: Path) -> Iterator[None]:
    """Remove a folder before, where someone was killed, and after."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
