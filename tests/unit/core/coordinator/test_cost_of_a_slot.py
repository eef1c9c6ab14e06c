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


@pytest.mark.parametrize("mode", ["bsp", "asp"])
def test_a_slot_costs_the_same_with_ten_times_the_workers(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    few, many = (_per_slot(monkeypatch, workers, mode) for workers in (20, 200))
    assert many < 1.15 * few


def _held_back(workers: int) -> int:
    """The bytecodes of a turn of a slow worker that gets no slot, while half of the workers compute."""
    job = CoordinatorKit(workers=workers, mode="asp", slots=1).start(data_len=100_000).initialise()
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
