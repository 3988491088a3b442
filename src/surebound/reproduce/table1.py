"""Table 1: every method at both radii, trained and certified once for each seed."""

from collections.abc import Sequence

from surebound.evaluate.store import Store
from surebound.report.tables import by_search, table1, table1_markdown
from surebound.reproduce.experiment import (
    Request,
    Summary,
    check,
    cores,
    document,
    engine,
    failure,
    refuse,
    settle,
    table1_trainings,
    write,
    write_page,
)
from surebound.reproduce.job import Job
from surebound.reproduce.jobs import JobEnded, OnStatus, run_jobs
from surebound.reproduce.lock import locked
from surebound.reproduce.place import Place, begun


def reproduce_table1(request: Request, on_status: OnStatus) -> Summary:
    """Train and certify what is missing, and write the table."""
    place, trainings, failures = request.place, table1_trainings(request), list[str]()
    check(place)
    with locked(place.path) as lock:
        store = place.store("table1")
        refuse(place, "table 1", taken=not request.resume and (store.exists() or begun(place, trainings)))
        trained = [place.trained(training) for training in trainings]
        settle(store)  # made by one process, before several write to it
        search = request.search or "default"
        jobs = [
            Job(kind="certify", training=c, search=search) for c, ready in zip(trainings, trained, strict=True) if ready
        ]
        jobs += [Job(kind="train", training=c) for c, ready in zip(trainings, trained, strict=True) if not ready]

        def then(ended: JobEnded) -> Sequence[Job]:
            if ended.result is None:
                failures.append(failure(ended))
            elif ended.job.kind == "certify":  # the table so far
                write(place.path / "table1.md", _markdown(place, search, failures))
            else:
                return [Job(kind="certify", training=ended.job.training, search=search)]
            return []

        total = 2 * len(trainings) - sum(trained)
        run_jobs(engine(request, lock, cores()), place, jobs, then=then, total=total, on_status=on_status)
        text = _markdown(place, search, failures)
        write(place.path / "table1.md", text)
        files = (place.path / "table1.md", write_page(place, store))
    return Summary(markdown=text, files=files, failures=tuple(failures))


def _markdown(place: Place, search: str, failures: Sequence[str]) -> str:
    with Store(place.store("table1"), readonly=True) as store:
        rows = by_search(table1(store)) or {search: []}
    return document("table1", place.scale, {name: table1_markdown(part) for name, part in rows.items()}, failures)
