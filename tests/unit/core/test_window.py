"""Which steps a state contains, how old it may be, and what each step is made of."""

from __future__ import annotations

import pytest
from tests.kit.core import segment

from paceline.core.segments import Schedule
from paceline.core.window import Watermark, admits, may_lease, needed_watermark, staleness
from paceline.types import INIT_STEP, UNLIMITED


def test_watermark_closes_gaps() -> None:
    mark = Watermark()
    for step in (INIT_STEP, 0, 2, 3):
        mark.add(step)
    assert (mark.low, mark.has(0), mark.has(1), mark.has(3), mark.has(4)) == (1, True, False, True, False)
    mark.add(1)
    assert mark.low == 4
    with pytest.raises(AssertionError, match="twice"):
        mark.add(2)


@pytest.mark.parametrize(
    ("window", "step", "watermark", "admitted"),
    [(0, 5, 5, True), (0, 5, 4, False), (3, 5, 2, True), (3, 5, 1, False), (3, 1, 0, True), (UNLIMITED, 99, 0, True)],
)
def test_a_state_may_lack_as_many_steps_as_the_window_says(
    window: int, step: int, watermark: int, admitted: bool
) -> None:
    assert admits(window, step, watermark) is admitted
    assert admitted is (watermark >= needed_watermark(window, step))


def test_staleness_is_never_negative() -> None:
    assert staleness(3, 7) == 0
    assert staleness(7, 3) == 4


def test_leases_go_one_step_further_than_reads() -> None:
    assert may_lease(0, 5, 4)
    assert not may_lease(0, 6, 4)
    assert may_lease(2, 7, 4)
    assert not may_lease(2, 8, 4)
    assert may_lease(UNLIMITED, 1000, 0)


def test_the_last_segment_from_a_step_on_decides() -> None:
    first, second = segment(slots=2, end_step=5), segment(step=5, slots=3, end_step=9, window=2, data_len=24)
    schedule = Schedule([first, second])
    assert [schedule.segment(t) for t in (0, 4, 5, 8)] == [first, first, second, second]
    assert [schedule.num_slots(t) for t in (INIT_STEP, 0, 5)] == [1, 2, 3]
    assert [schedule.window(t) for t in (INIT_STEP, 0, 5)] == [0, 0, 2]
    assert [schedule.covers(t) for t in (INIT_STEP, 0, 8, 9)] == [True, True, True, False]


def test_a_segment_that_closes_the_job_takes_effect_at_once() -> None:
    schedule = Schedule([segment(end_step=5)])
    assert schedule.num_slots(3) == 2
    schedule.append(segment(step=3, offset=12, end_step=3, slots=1))
    assert schedule.end_step == 3
    assert not schedule.covers(3)
    assert schedule.num_slots(3) == 1
    schedule.append(segment(step=2, offset=8, end_step=2))
    assert [s.step for s in schedule.segments] == [0, 2]
