"""Several threads give the result of one thread, and keep no items after a round."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from tests.kit.server import frames, hyper_of

from paceline.blocks.threads import WORTH_NBYTES, Scratch, Threads
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, Commit, Kind, ModelSpec, OptimizerSpec, TensorSpec


def names() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("paceline-apply")}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_item_is_done_once_by_one_thread(count: int) -> None:
    threads = Threads(count)
    for size in (0, 1, 3, 200):
        done: list[int] = []
        threads.run(lambda scratch, item, done=done: done.append(item), list(range(size)), WORTH_NBYTES)  # type: ignore[misc]
        assert sorted(done) == list(range(size))
    threads.close()
    assert names() == set()


def test_small_work_stays_in_the_callers_thread() -> None:
    threads = Threads(4)
    seen: set[str] = set()
    threads.run(lambda scratch, item: seen.add(threading.current_thread().name), [1, 2, 3], WORTH_NBYTES - 1)
    assert seen == {threading.current_thread().name}
    assert names() == set(), "small work starts no thread"


def test_an_error_reaches_the_caller_and_the_threads_stay_usable() -> None:
    threads = Threads(3)
    started = threading.Barrier(3)

    def work(scratch: Scratch, item: int) -> None:
        if item < 3:
            started.wait(20)  # so that every thread gets an item
        if item == 1:
            raise KeyError("item 1")

    for _ in range(2):
        with pytest.raises(KeyError, match="item 1"):
            threads.run(work, list(range(50)), WORTH_NBYTES)
    done: list[int] = []
    threads.run(lambda scratch, item: done.append(item), [1, 2, 3], WORTH_NBYTES)
    assert sorted(done) == [1, 2, 3]
    threads.close()
    assert names() == set()


class Item:
    """An object that a weak reference can watch."""


def test_threads_hold_no_items_between_two_rounds() -> None:
    threads = Threads(2)
    items = [Item() for _ in range(20)]
    meeting = threading.Barrier(2)
    seen: set[int] = set()

    def work(scratch: Scratch, item: Item) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            meeting.wait(20)

    threads.run(work, items, WORTH_NBYTES)
    held: list[object] = [work, *items]
    refs = [weakref.ref(thing) for thing in held]
    del held, items, work
    assert [ref() for ref in refs if ref() is not None] == []
    threads.close()


def test_threads_do_not_share_scratch_memory() -> None:
    threads = Threads(2)
    meeting = threading.Barrier(2)
    addresses: list[int] = []

    def work(scratch: Scratch, item: int) -> None:
        addresses.append(scratch.take("grad", torch.float32, 10 + item).data_ptr())
        meeting.wait(20)

    threads.run(work, [0, 1], WORTH_NBYTES)
    threads.close()
    assert len(set(addresses)) == 2


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    size = 3 * WORTH_NBYTES // 4 // 2
    specs = tuple(TensorSpec(f"p{i}", (size + i,), "float32", Kind.PARAMETER, 0) for i in range(2))
    blocks = cut(specs)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    hyper = hyper_of(optimizer)
    results = []
    for threads in (1, 3):
        store = DenseStore(threads=Threads(threads))
        store.open(ModelSpec(specs, OptimizerSpec("SGD", hyper)), blocks)
        generator = torch.Generator().manual_seed(3)
        for step in range(INIT_STEP, 3):
            for slot in range(2 if step >= 0 else 1):
                values: list[torch.Tensor | None] = [torch.randn(s.numel, generator=generator) for s in specs]
                store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), frames(blocks, values), slot=slot))
            store.apply(SumKey(step, None), Commit(0, step + 1, step, (), hyper, 1.0, False, 0, 0))
        assert len(names()) == threads - 1
        results.append([state.value.clone() for state in store.snapshot().values()])
        store.close()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
