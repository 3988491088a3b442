"""Processes of one start find each other, whatever earlier starts have left in the store."""

from concurrent.futures import ThreadPoolExecutor

from torch.distributed import HashStore

from surebound.train.meeting import _answer, _asks, _came, _follow, _lead


def meet(store: HashStore, size: int) -> str:
    """The name that all processes of a start come to; the first of them comes last."""
    with ThreadPoolExecutor(size) as pool:
        others = [pool.submit(_follow, store, rank) for rank in range(1, size)]
        names = {pool.submit(_lead, store, size).result(60), *(other.result(60) for other in others)}
    (name,) = names
    return name


def test_each_start_has_a_name_of_its_own() -> None:
    store = HashStore()
    names = [meet(store, size) for size in (3, 3, 2, 4)]
    assert len(set(names)) == 4


def test_a_start_that_was_cut_off_does_not_disturb_the_next() -> None:
    """Ranks 1 and 2 had asked, one of them had its answer, and then all of them died."""
    store = HashStore()
    for rank in (1, 2):
        store.set(_asks(rank), f"word {rank}")
    store.set(_answer("word 1"), "old")
    store.set(_came("old", 1), "")
    assert meet(store, 3) != "old"


def test_one_process_waits_for_nobody() -> None:
    assert _lead(HashStore(), 1)
