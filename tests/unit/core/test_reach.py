"""Who cannot reach whom: how long that is believed."""

from __future__ import annotations

from paceline.core.reach import Reach


def test_a_report_is_believed_for_a_while_and_longer_each_time() -> None:
    reach = Reach()
    reach.report("a", "b", 0.0)
    assert reach.cuts(4.9) == {("a", "b")}
    assert reach.cuts(5.0) == frozenset()
    reach.report("a", "b", 6.0)
    assert reach.cuts(15.9) == {("a", "b")}
    assert reach.next_end(6.0) == 16.0


def test_a_report_that_is_taken_back_is_not_believed_any_more_but_remembered() -> None:
    reach = Reach()
    reach.report("a", "b", 0.0)
    reach.restore("a", "b", 1.0)
    assert reach.cuts(1.0) == frozenset()
    reach.report("a", "b", 2.0)
    assert reach.cuts(11.9) == {("a", "b")}


def test_trouble_of_long_ago_is_forgotten() -> None:
    reach = Reach()
    for at in range(0, 200, 20):
        reach.report("a", "b", float(at))
    reach.report("c", "d", 5000.0)
    assert len(reach._cuts) == 1
    reach.report("a", "b", 5001.0)
    assert reach.next_end(5004.0) == 5005.0
    assert reach.cuts(5005.5) == {("a", "b")}
    assert reach.cuts(5006.0) == frozenset()
