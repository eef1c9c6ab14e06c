"""Reports that one peer cannot reach another, and how long each report counts."""

from __future__ import annotations

from paceline.core.coordinator.tables.reachability import Reach


def test_a_report_counts_until_it_expires_or_is_withdrawn() -> None:
    reach = Reach()
    assert reach.report("a", "b", 0.0, 5.0) == 0.0
    assert reach.cuts(4.9) == {("a", "b")}
    assert reach.cuts(5.0) == frozenset()
    assert reach.report("a", "b", 6.0, 5.0) == 0.0
    assert reach.report("a", "b", 7.0, 5.0) == 1.0
    assert reach.next_end(7.0) == 12.0
    assert reach.untried(8.0) == [("a", "b")]
    reach.restore("a", "b", 8.0)
    assert reach.cuts(8.0) == frozenset()
    assert reach.untried(8.0) == []


def test_a_link_that_fails_repeatedly_counts_as_restored_later_each_time_up_to_a_limit() -> None:
    reach, waits = Reach(), []
    for now in range(0, 200, 20):
        reach.report("a", "b", float(now), 60.0)
        reach.restore("a", "b", now + 1.0, wary=True)
        assert reach.untried(now + 1.0) == []
        end = reach.next_end(now + 1.0)
        waits.append(0.0 if end is None else end - now - 1.0)
        reach.restore("a", "b", now + 1.5, wary=True)
        assert reach.next_end(now + 1.0) == end, "a repeated message does not extend the time"
    assert waits[:5] == [0.0, 1.0, 3.0, 7.0, 7.0]


def test_old_reports_are_forgotten() -> None:
    reach = Reach()
    for now in range(0, 200, 20):
        reach.report("a", "b", float(now), 5.0)
    reach.report("c", "d", 500.0, 5.0)
    assert len(reach._cuts) == 1
    reach.report("a", "b", 501.0, 60.0)
    reach.restore("a", "b", 502.0, wary=True)
    assert reach.cuts(502.0) == {("c", "d")}


def test_reports_about_a_removed_member_are_forgotten() -> None:
    reach = Reach()
    reach.report("a", "b", 0.0, 60.0)
    reach.report("c", "a", 0.0, 60.0)
    reach.forget("a")
    assert reach.untried(0.0) == []
