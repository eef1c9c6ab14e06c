"""The time in which a process ran, without its pauses."""

from __future__ import annotations

from paceline.core.running_time import RunningTime


def test_a_pause_of_the_process_counts_at_most_the_largest_gap() -> None:
    clock = RunningTime(max_gap_s=1.0)
    assert clock.advance(100.0) == 0.0
    assert clock.advance(100.5) == 0.5
    assert clock.advance(160.0) == 1.5
    assert clock.advance(159.0) == 1.5
    assert clock.advance(159.25) == 1.75
