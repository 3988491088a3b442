"""Branching: UPB, FSB and SR on networks of IBP-R and COLT, image by image, side by side, with each profile."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from surebound.evaluate.store import Store
from surebound.report.tables import branching, branching_markdown, by_search
from surebound.reproduce.experiment import (
    Request,
    Summary,
    check,
    cores,
    document,
    engine,
    failure,
    refuse,
    write,
    write_page,
)
from surebound.reproduce.job import Job
from surebound.reproduce.jobs import JobEnded, OnStatus, run_jobs
from surebound.reproduce.lock import locked
from surebound.reproduce.place import Place
from surebound.reproduce.scales import NETWORKS, PROFILES, RULES, Training

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

_TIMING = (
    "Every image is first taken through the attack and the bounds that need no search, once; what is left open is "
    "searched with one rule after the other in the same process, on one thread, and each image begins with another "
    "rule. Early termination is off. The cactus plots are in report.html."
)


def reproduce_branching(request: Request, on_status: OnStatus) -> Summary:
    """Train what is missing, verify what is missing with every rule, and write the table."""
    place, failures = request.place, list[str]()
    searches = PROFILES if request.search is None else (request.search,)
    trainings = [Training(s, m) for s, m in NETWORKS if s in request.settings and m in request.methods]
    dataset = check(place)
    with locked(place.path) as lock:
        refuse(place, "branching", taken=not request.resume and place.store("branching").exists())
        missing = [Job(kind="train", training=training) for training in trainings if not place.trained(training)]

        def then(ended: JobEnded) -> Sequence[Job]:
            if ended.result is None:
                failures.append(failure(ended))
            return ()

        if missing:
            run_jobs(engine(request, lock, cores()), place, missing, then=then, total=len(missing), on_status=on_status)
        trained = [training for training in trainings if place.trained(training)]
        jobs = [job for search in searches for job in _jobs(place, trained, dataset, search)]
        del dataset
        run_jobs(engine(request, lock, 1), place, jobs, then=then, total=len(jobs), on_status=on_status)
        with Store(place.store("branching"), readonly=True) as store:
            rows = by_search(branching(store)) or {search: [] for search in searches}
        tables = {search: branching_markdown(part) for search, part in rows.items()}
        text = document("branching", place.scale, tables, failures, _TIMING)
        write(place.path / "branching.md", text)
        files = (place.path / "branching.md", write_page(place, place.store("branching")))
    return Summary(markdown=text, files=files, failures=tuple(failures))


def _jobs(place: Place, trainings: Sequence[Training], dataset: "Dataset", search: str) -> list[Job]:
    """Every image of every network that some rule has not been tried on."""
    from surebound.evaluate.certifying import expect_same_data
    from surebound.reproduce.perform import branching_task

    jobs = []
    with Store(place.store("branching")) as store:
        for training in trainings:
            tasks = {rule: branching_task(place, training, dataset, rule, search) for rule in RULES}
            described = {rule: task.describe() for rule, task in tasks.items()}
            for run in described.values():
                expect_same_data(store, run)
            runs = {rule: store.begin(run) for rule, run in described.items()}
            done = {rule: store.outcomes(run) for rule, run in runs.items()}
            for image in tasks[RULES[0]].images:
                left = {rule: run for rule, run in runs.items() if image not in done[rule]}
                if left:
                    first = image % len(RULES)
                    jobs.append(
                        Job(kind="branch", training=training, image=image, first=first, runs=left, search=search)
                    )
    return jobs
