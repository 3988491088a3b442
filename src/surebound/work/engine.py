"""Which engine does the work."""

from collections.abc import Mapping
from typing import Any

from surebound.errors import UsageError
from surebound.work.inline import Inline
from surebound.work.processes import Processes
from surebound.work.task import Engine


def choose(
    *, workers: int | None = None, cluster: str | None = None, resources: Mapping[str, Any] | None = None
) -> Engine:
    """A Ray cluster if there is an address, else so many processes, or this one alone."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers is {workers!r}; expected a whole number from 1 up")
    if cluster is not None and not isinstance(cluster, str):
        raise UsageError(f"cluster is {cluster!r}; expected 'auto' or 'HOST:PORT'")
    if cluster is not None:
        from surebound.work.cluster import Cluster

        if workers is not None:
            raise UsageError("workers and a cluster; expected one of the two: a cluster has workers of its own")
        return Cluster(cluster, dict(resources or {}))
    if resources is not None:
        raise UsageError("resources without a cluster; expected both: they are what a task takes of a cluster")
    return Inline() if workers in (None, 1) else Processes(workers or 1)
