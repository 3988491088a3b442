"""The first steps of every training, to see that it runs and how long it would take; nothing is kept."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surebound.reproduce.experiment import Request, Summary, check, cores, engine, failure
from surebound.reproduce.job import Job
from surebound.reproduce.jobs import JobEnded, OnStatus, run_jobs
from surebound.reproduce.lock import locked
from surebound.reproduce.scales import SETTINGS, Training


def try_trainings(request: Request, on_status: OnStatus) -> Summary:
    """Every method and radius with the first seed, for a few steps."""
    assert request.steps is not None
    place = request.place
    check(place)
    trainings = [Training(setting, method) for method in request.methods for setting in request.settings]
    over: dict[Training, JobEnded] = {}

    def then(ended: JobEnded) -> tuple[Job, ...]:
        over[ended.job.training] = ended
        return ()

    with locked(place.path) as lock, _passing(place.trials):
        jobs = [Job(kind="try", training=training, steps=request.steps) for training in trainings]
        run_jobs(engine(request, lock, cores()), place, jobs, then=then, total=len(jobs), on_status=on_status)
    lines = ["| ε | method | steps | loss | seconds per step | whole training [h] |", "|---|---|--:|--:|--:|--:|"]
    for training in trainings:
        found = over[training].result
        if found is not None:
            values = f"{found['steps']} | {found['loss']:.4g} | {found['pace']:.3g} | {found['whole'] / 3600:.3g}"
            lines.append(f"| {SETTINGS[training.setting]} | {training.method} | {values} |")
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
