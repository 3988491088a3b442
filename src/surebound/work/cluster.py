"""Work on a Ray cluster (https://docs.ray.io). Ray is imported when the first cluster is opened, and not before.

A setup goes into the cluster's object store once, and each process of the cluster fetches it once; tasks carry no more
than their own data. What becomes of a task streams back: Ray's streaming generators yield each piece of news when it is
there. Ray's own retries are off, since who is to blame for a worker's death is the desk's to judge.
"""

import logging
import os
import pickle
import platform
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Generic, final
from uuid import uuid4

from surebound import interrupts
from surebound.errors import ResourceError, SureboundError, UsageError, one_line
from surebound.version import __version__
from surebound.work.remote import perform, wish
from surebound.work.task import Began, Lost, News, Raised, Result, Setup, Task, Word

ENVIRONMENT = {  # before Ray is imported, unless they are set: it counts its users, talks, and gives way to others
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # of a Ray that is started here: the priority that processes have
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # it reports on workers that died, on stdout
}
_PATIENCE = 5.0  # seconds for an address to answer
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # of HTTP/2: RFC 9113, section 3.4
_SETTINGS = 4  # the type of frame that a server begins with
_TICK = 0.5  # seconds
_FRESH = 1.0  # seconds for which the cluster's size is taken as known
_NOT_INSTALLED = "a cluster needs Ray, which is not installed; expected it after pip install 'surebound[ray]'"
_UNITS = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


@final
@dataclass(frozen=True)
class Cluster:
    """The engine of a cluster: at HOST:PORT; or `auto`, one that runs here or is started for as long as it is used."""

    address: str
    resources: Mapping[str, Any] = field(default_factory=dict)  # Ray's options of a task, such as num_gpus
    remote: bool = True

    def open(self, setup: Setup[Task, Result]) -> "ClusterPool[Task, Result]":
        return ClusterPool(self, setup)


@final
class ClusterPool(Generic[Task, Result]):
    """The workers of a cluster."""

    def __init__(self, engine: Cluster, setup: Setup[Task, Result]) -> None:
        self._ray = _import()
        if engine.address != "auto":
            _expect_answer(engine.address)
        self._ours = not self._ray.is_initialized()
        address = _here() if self._ours and engine.address == "auto" else engine.address
        if self._ours:
            _connect(self._ray, address)
        self._needs = {"num_cpus": 1, **engine.resources}
        self._running: dict[Any, tuple[int, float]] = {}  # the stream of each task, its number and grace
        self._size = (-_FRESH, 1)  # when it was asked for, and the answer
        try:
            _check_version(self._ray, engine.address)
            self._perform = _task(self._ray, self._needs)
            if address == "local" and not self._fit():  # and no machine will join
                raise UsageError(f"--resources ask for {self._needs}, which this machine does not have")
            self._setup = self._ray.put(pickle.dumps(setup))
        except BaseException:
            self.__exit__()
            raise
        self._key = uuid4().hex

    @property
    def slots(self) -> int:
        """As many tasks as fit the cluster now, and a few more, so that none of its workers has to wait for us."""
        asked, slots = self._size
        if time.monotonic() - asked > _FRESH:
            fit = self._fit()
            slots = fit + max(1, fit // 4)
            self._size = time.monotonic(), slots
        return slots

    def _fit(self) -> int:
        """How many tasks the cluster has room for, as it is now."""
        there = self._ray.cluster_resources()
        wanted = {_UNITS[name]: self._needs[name] for name in _UNITS if self._needs.get(name)}
        wanted |= self._needs.get("resources") or {}
        return min((int(there.get(name, 0) / amount) for name, amount in wanted.items() if amount), default=1)

    def begin(self, number: int, task: Task, grace: float) -> None:
        threads = max(1, int(self._needs["num_cpus"]))
        stream = self._perform.remote(self._key, [self._setup], number, pickle.dumps(task), __version__, threads)
        self._running[stream] = number, grace

    def stop(self, number: int) -> None:
        for running, _ in self._running.values():
            if running == number:
                _wish(wish(self._key, number))

    def wait(self, seconds: float | None) -> Sequence[News[Result]]:
        streams, ready = list(self._running), []
        try:
            if self._ray.wait(streams, num_returns=1, timeout=seconds, fetch_local=False)[0]:
                ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        except self._ray.exceptions.RayError as error:
            raise ResourceError(f"the cluster was lost ({one_line(error)}); what is done is kept") from error
        return [self._next(stream) for stream in ready]

    def _next(self, stream: Any) -> News[Result]:
        """What a task says, or how it was lost."""
        number, _ = self._running[stream]
        errors = self._ray.exceptions
        news: News[Result]
        try:
            news = self._ray.get(next(stream))
        except errors.RayTaskError as error:  # before the task itself began
            cause = getattr(error, "cause", None)
            sentence = UsageError(f"a worker of the cluster cannot begin: {one_line(cause or error)}")
            news = Raised(number, cause if isinstance(cause, SureboundError) else sentence, 0.0)
        except errors.OutOfMemoryError:
            news = Lost(number, "its worker was ended by Ray, which was short of memory")
        except errors.WorkerCrashedError:
            news = Lost(number, "its worker died (out of memory?)")
        except errors.RayError as error:
            news = Lost(number, f"its node was lost ({type(error).__name__})", blamed=False)
        if not isinstance(news, Began | Word):
            del self._running[stream]
        return news

    def __enter__(self) -> "ClusterPool[Task, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        graceful = {number: grace for number, grace in self._running.values() if grace}
        deadline = time.monotonic() + max(graceful.values(), default=0.0)
        try:
            for number in graceful:
                self.stop(number)
            while time.monotonic() < deadline and graceful.keys() & {number for number, _ in self._running.values()}:
                self.wait(_TICK)
        finally:
            with interrupts.held():
                for stream in self._running:
                    self._ray.cancel(stream, force=True)
                self._running.clear()
                if self._ours:
                    self._ray.shutdown()


def _import() -> Any:
    """Ray, with our settings."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError(_NOT_INSTALLED) from error
    return ray


def expect_cluster(address: str) -> None:
    """Raise UsageError if there is no such cluster, as far as that can be known without joining it."""
    try:
        found = find_spec("ray")
    except ValueError:  # what Python makes of a module that is barred
        found = None
    if found is None:
        raise UsageError(_NOT_INSTALLED)
    if address != "auto":
        _expect_answer(address)


def _here() -> str:
    """The address of the cluster that is named in the environment or was started here with `ray start`; or `local`."""
    from ray._private.services import find_bootstrap_address

    if named := os.environ.get("RAY_ADDRESS"):
        _expect_answer(named)
        return named
    found = find_bootstrap_address(None)
    try:
        _expect_answer(found or "")
    except UsageError:  # it was killed, or there never was one
        return "local"
    return str(found)


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start a `local` one."""
    new = {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False} if address == "local" else {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **new)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(_refusal(address, error)) from error
    except SystemExit:  # what Ray makes of SIGTERM
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # which Ray takes for itself


def _expect_answer(address: str) -> None:
    """Raise UsageError if nobody listens, or something else than Ray: Ray itself would take minutes to say so.

    Ray's head node talks gRPC, over HTTP/2: it answers a greeting with its settings.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--cluster is '{address}'; expected auto or HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0" and not _greets(connection):
                raise OSError("what listens there is not Ray")
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"there is no cluster at '{address}' ({one_line(error)}); expected HOST:PORT of a Ray head node, or auto"
        ) from error


def _greets(connection: socket.socket) -> bool:
    """Whether a server says what one of gRPC's begins with: a frame of settings, after its length in three bytes."""
    connection.sendall(_HELLO)
    heard = b""
    while len(heard) < 4 and (more := connection.recv(64)):
        heard += more
    return heard[3:4] == bytes([_SETTINGS])


def _refusal(address: str, error: Exception) -> str:
    """Why a cluster could not be joined."""
    words = str(error) if "mismatch" in str(error) else str(error.__cause__ or error)
    found = dict(re.findall(r"(Ray|Python): (\S+)", words.split("This process")[0]))
    if "Version mismatch" in words and found:
        here = {"Ray": version("ray"), "Python": platform.python_version()}
        theirs, ours = (" and ".join(f"{name} {of[name]}" for name in here if name in of) for of in (found, here))
        return f"the cluster at '{address}' has {theirs}; expected {ours}, as here"
    first = words.partition("Last connection error")[0]  # the rest is a traceback of Ray's
    return (
        f"cannot join the cluster at '{address}': {one_line(Exception(first))}; expected a Ray cluster with a node here"
    )


def _check_version(ray: Any, address: str) -> None:
    """Raise UsageError unless the cluster has the same surebound as this process."""

    def probe() -> str:  # pickled by value, so that it also runs where there is none
        try:
            from surebound.version import __version__
        except ImportError:
            return ""
        return __version__

    there = ray.get(ray.remote(num_cpus=0, max_retries=3)(probe).remote())
    if there != __version__:
        found = f"surebound {there}" if there else "no surebound"
        raise UsageError(f"the cluster at '{address}' has {found}; expected surebound {__version__}, as here")


def _task(ray: Any, needs: Mapping[str, Any]) -> Any:
    """`perform` as a task of Ray's."""
    try:
        return ray.remote(**{**needs, "num_returns": "streaming", "max_retries": 0, "name": "surebound"})(perform)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--resources are {dict(needs)}: {one_line(error)}") from error


def _wish(name: bytes) -> None:
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(name, b"")
