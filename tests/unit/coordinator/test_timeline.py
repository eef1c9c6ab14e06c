"""The timeline of a run: rate, run time and pauses."""

from __future__ import annotations

import pytest

from paceline.coordinator.timeline import Timeline


def test_after_a_rewind_the_rate_counts_only_later_commits() -> None:
    timeline = Timeline(earlier_s=10.0)
    assert (timeline.seconds, timeline.rate(0.0)) == (10.0, None)
    for second in range(5):
        timeline.committed(second, 100.0 * second, float(second))
    assert (timeline.seconds, timeline.rate(4.0), timeline.reached) == (14.0, 100.0, 4)
    assert timeline.rate(9.0) == 50.0, "the time since the last commit counts"
    timeline.committed(2, 200.0, 5.0)
    assert (timeline.rate(5.0), timeline.reached) == (None, 4)
    timeline.committed(3, 300.0, 6.0)
    assert (timeline.rate(6.0), timeline.seconds) == (100.0, 16.0)


def test_the_longest_pause_is_measured_only_after_a_failover() -> None:
    timeline = Timeline()
    timeline.committed(0, 0.0, 10.0)
    timeline.committed(1, 8.0, 11.0)
    timeline.failed_over(11.2)
    timeline.failed_over(11.4)
    timeline.committed(2, 16.0, 11.9)
    timeline.committed(3, 24.0, 99.0)
    assert timeline.failover_s == pytest.approx(0.9), "the pause without a failover does not count"
