"""The cost of a slot does not grow with the number of workers.

Counted are the bytecodes that the coordinator's core executes: a walk over all workers or leases adds some for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.kit.core import CoordinatorKit, sent
from tests.kit.restarted_job import busy

from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import Effect
from paceline.messages import Grant
from paceline.sim.measure import measure


class _Bytecodes:
    """Counts the bytecodes that `run` executes."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace

    def run(self, work: Callable[[], list[Effect]]) -> list[Effect]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(before)


def _per_slot(monkeypatch: pytest.MonkeyPatch, workers: int, mode: str) -> float:
    counted, handle = _Bytecodes(), CoordinatorCore.handle

    def count(core: CoordinatorCore, *given: Any) -> list[Effect]:
        if core.version < 0:
            return handle(core, *given)
        return counted.run(lambda: handle(core, *given))

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorCore, "handle", count)
        cost = measure(workers, mode, num_slots=600)
    return counted.count / cost.slots


@pytest.mark.parametrize(("mode", "most"), [("bsp", 2_350), ("asp", 3_600)])
def test_a_slot_costs_the_same_with_ten_times_the_workers(
    monkeypatch: pytest.MonkeyPatch, mode: str, most: int
) -> None:
    few, many = (_per_slot(monkeypatch, workers, mode) for workers in (20, 200))
    assert few < most
    assert many < 1.12 * few


def _held_back(workers: int) -> int:
    """The bytecodes of a turn of a slow worker that gets no slot, while half of the workers compute."""
    slots = workers // 2 + 20  # one for each fast worker, and the last 20
    job = CoordinatorKit(workers=workers, mode="asp", slots=1).start(data_len=2 * slots).initialise()
    fast, slow = job.workers[: workers // 2], job.workers[workers // 2 :]
    for worker in (*fast, *slow):
        busy(job, worker, 1.0 if worker in slow else 0.1)
    for worker in fast:
        job.lease(worker)
    counted = _Bytecodes()
    assert sent(counted.run(lambda: job.turn(slow[-1])), Grant) == []
    return counted.count


def test_a_slow_worker_is_held_back_without_a_look_at_all_workers() -> None:
    assert _held_back(400) < 1.15 * _held_back(40)


def _commit_beside(held_back: int) -> int:
    """The bytecodes of a commit in `asp` while so many slow workers are held back."""
    job = CoordinatorKit(workers=held_back + 10, mode="asp", slots=1).start(data_len=2 * 40).initialise()
    fast, slow = job.workers[:10], job.workers[10:]
    for worker in job.workers:
        busy(job, worker, 0.1 if worker in fast else 1.0)
    grants = [job.lease(worker) for worker in fast]
    for worker in slow:
        assert sent(job.turn(worker), Grant) == []
    job.seal(fast[0], grants[0])
    counted, version = _Bytecodes(), job.core.version
    counted.run(lambda: job.ready(job.servers[0], grants[0].step, grants[0].fence))
    assert job.core.version == version + 1
    return counted.count


def test_a_commit_does_not_ask_all_workers_that_are_held_back() -> None:
    assert _commit_beside(400) < 1.15 * _commit_beside(40)


def _servers_found(workers: int) -> int:
    job = CoordinatorKit(workers=workers).start()
    counted = _Bytecodes()

    def look() -> list[Effect]:
        assert [m.node for m in job.core.tables.members.by_role("server")] == ["server-0"]
        return []

    counted.run(look)
    return counted.count


def test_servers_are_found_without_a_walk_over_all_workers() -> None:
    assert _servers_found(200) == _servers_found(20)
