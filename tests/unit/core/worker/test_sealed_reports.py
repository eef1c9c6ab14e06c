"""Reports of sealed slots: repeated to a new coordinator, unless the attempt cannot count."""

from __future__ import annotations

from tests.kit.core import fence

from paceline.core.worker.sealed_reports import SealedReports
from paceline.messages import Grant, Push, Sealed
from paceline.types import INIT_STEP


def seal(reports: SealedReports, step: int, *, slots: int = 1, incarnation: int = 0, epoch: int | None = 1) -> None:
    task = Grant(1, 1, 0, 1, step, 0, slots, fence(step + 10), None, False)
    reports.add(task, Sealed(step, 0, task.fence, 1.0, (), {}, 0.1), incarnation, epoch)


def steps(reports: SealedReports) -> list[int]:
    return [lease.step for lease in reports.leases(1)]


def test_the_newest_reports_are_kept_and_only_those_that_may_count() -> None:
    reports = SealedReports()
    seal(reports, INIT_STEP)
    assert reports.last_step == -2, "no worker waits for the initial weights"
    for step in range(5):
        seal(reports, step)
    assert (steps(reports), reports.last_step) == ([1, 2, 3, 4], 4)
    seal(reports, 5, epoch=2)
    assert (steps(reports), reports.last_step) == ([1, 2, 3, 4], 4), "an attempt of an older placement is not kept"
    seal(reports, 6, incarnation=1)
    assert (steps(reports), reports.last_step) == ([1, 2, 3, 4], 6)
    seal(reports, 7, slots=2)
    assert (steps(reports), reports.last_step) == ([2, 3, 4, 7], -2)


def test_an_attempt_is_given_back_once_and_is_not_reported_if_it_is_sealed_later() -> None:
    reports = SealedReports()
    refused = Push(1, 0, 1, 4, 0, fence(14), 2, ())
    seal(reports, 3)
    seal(reports, 4)
    assert reports.take_back(refused)
    assert not reports.take_back(refused)
    assert (steps(reports), reports.last_step) == ([3], -2)
    seal(reports, 4)
    assert (steps(reports), reports.last_step) == ([3], -2)
