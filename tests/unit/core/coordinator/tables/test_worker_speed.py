"""Whether other workers would be sooner: the answer of a walk that stops early is that of a look at all workers."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heapreplace

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.coordinator.tables.worker_speed import WorkerSpeeds

_SECONDS = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.1 + 0.2, 1.0]), st.floats(0.0, 2.0))
_BUSY = st.one_of(st.sampled_from([0.0, 0.1, 0.3, 0.5, 3.0]), st.floats(0.0, 4.0))
_NAMES = [f"worker-{number}" for number in range(8)]


def _look_at_all(speeds: WorkerSpeeds, worker: str, slots: int, others: dict[str, float]) -> bool:
    """Play the next slots of all others in the order of their ends."""
    mine = speeds.of(worker)
    ends = []
    for other, busy_s in others.items():
        mean = speeds.of(other)
        if mean is not None and other != worker and busy_s <= max(3.0 * mean, 0.5):
            at = max(0.0, mean - busy_s) if busy_s else 0.0
            ends.append((at + mean, mean))
    if not ends or mine is None or not speeds.knows(worker):
        return False
    heapify(ends)
    last = 0.0
    for _ in range(slots):
        last, mean = ends[0]
        if last >= mine:
            return False
        heapreplace(ends, (last + mean, mean))
    return last < mine


@settings(max_examples=400, deadline=None)
@given(
    before=st.lists(st.tuples(st.sampled_from(_NAMES), _SECONDS), max_size=12),
    after=st.lists(st.tuples(st.sampled_from(_NAMES), _SECONDS), max_size=6),
    gone=st.sets(st.sampled_from(_NAMES), max_size=2),
    others=st.dictionaries(st.sampled_from(_NAMES), _BUSY),
    slots=st.integers(1, 40),
    beyond=st.integers(0, 3),
)
def test_the_answer_is_that_of_a_look_at_all_workers(
    before: list[tuple[str, float]],
    after: list[tuple[str, float]],
    gone: set[str],
    others: dict[str, float],
    slots: int,
    beyond: int,
) -> None:
    speeds = WorkerSpeeds()
    for worker, seconds in before:
        speeds.note(worker, seconds, 0.0)
    speeds.refresh()
    for worker in gone:
        speeds.forget(worker)
    for worker, seconds in after:
        speeds.note(worker, seconds, 0.1)
    for worker in _NAMES:
        found = speeds.others_are_sooner(worker, slots, others.items(), len(others) + beyond)
        assert found == _look_at_all(speeds, worker, slots, others)


@given(
    measured=st.dictionaries(st.sampled_from(_NAMES), _SECONDS, min_size=1),
    busy=st.dictionaries(st.sampled_from(_NAMES), _BUSY),
    slots=st.integers(1, 40),
)
def test_if_the_fastest_that_waits_is_too_slow_all_are(
    measured: dict[str, float], busy: dict[str, float], slots: int
) -> None:
    speeds = WorkerSpeeds()
    for worker, seconds in measured.items():
        speeds.note(worker, seconds, 0.0)
    speeds.refresh()
    waiting = [worker for worker in measured if worker not in busy]
    others = [*busy.items(), *((worker, 0.0) for worker in waiting)]
    if waiting and speeds.are_sooner(min(measured[w] for w in waiting), slots, others, len(others)):
        assert all(speeds.others_are_sooner(worker, slots, others, len(others)) for worker in waiting)


def test_only_as_many_workers_are_looked_at_as_decide() -> None:
    speeds = WorkerSpeeds()
    speeds.note("slow", 1.0, 0.0)
    for number in range(1000):
        speeds.note(f"fast-{number}", 0.125, 0.0)
    seen: list[str] = []

    def others() -> Iterator[tuple[str, float]]:
        for number in range(1000):
            seen.append(f"fast-{number}")
            yield f"fast-{number}", 0.0

    assert speeds.others_are_sooner("slow", 65, others(), 1000)
    assert len(seen) == 10, "each finishes 7 slots"
    seen.clear()
    assert not speeds.others_are_sooner("slow", 11_000, others(), 1000)
    assert seen == [], "none finishes more than 7 slots"
