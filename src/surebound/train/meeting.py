"""Where the processes of one start of a training find each other.

torchrun keeps its store of keys when it starts processes again, with the addresses of those that are gone: who is quick
reads one of them and waits for a dead process (pytorch issue 135712). Its count of restarts does not tell the starts
apart, because each machine has its own. So the processes agree on a name that no earlier start has used, and exchange
everything else below it. The first process makes the name up. Each of the others asks for it by a word that it has just
made up, and takes no answer but one to that word.
"""

import time
from uuid import uuid4

from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_PAUSE = 0.02  # seconds between two looks at the store: a look does not block, so that signals are heeded


def meet(rank: int, size: int) -> Store:
    """A part of the store that the environment names, which only the processes of this start use."""
    store, *_ = next(rendezvous("env://", rank, size, timeout=default_pg_timeout))
    name = _lead(store, size) if rank == 0 else _follow(store, rank)
    return PrefixStore(f"surebound/{name}", store)


def _lead(store: Store, size: int) -> str:
    """Answer whoever asks, until all others have come. A word of an earlier start is answered, too: nobody reads it."""
    name, missing = uuid4().hex, set(range(1, size))
    deadline = _deadline()
    while missing := {rank for rank in missing if not store.check([_came(name, rank)])}:
        for rank in missing:
            if store.check([_asks(rank)]):
                store.set(_answer(store.get(_asks(rank)).decode()), name)
        _pause(deadline, f"{len(missing)} of {size} processes have not come")
    return name


def _follow(store: Store, rank: int) -> str:
    word, deadline = uuid4().hex, _deadline()
    store.set(_asks(rank), word)
    while not store.check([_answer(word)]):
        _pause(deadline, "the first process has not come")
    name = store.get(_answer(word)).decode()
    store.set(_came(name, rank), "")
    return name


def _asks(rank: int) -> str:
    return f"surebound/asks/{rank}"


def _answer(word: str) -> str:
    return f"surebound/answer/{word}"


def _came(name: str, rank: int) -> str:
    return f"surebound/came/{name}/{rank}"


def _deadline() -> float:
    return time.monotonic() + default_pg_timeout.total_seconds()


def _pause(deadline: float, reason: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(reason)
    time.sleep(_PAUSE)
