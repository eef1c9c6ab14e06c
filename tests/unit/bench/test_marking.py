"""When the loop of a benchmark ends, and which marks it writes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.kit.bench_modules import load

marking = load("marking")


def _turns(marker: object, least: int, most: int, clock: list[float], each: float) -> int:
    for turn in range(most):
        if not marker.mark(turn):  # type: ignore[attr-defined]
            assert turn >= least
            return turn
        clock[0] += each
    raise AssertionError(f"still going after {most} turns")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_loop_ends_after_the_given_time_from_its_warm_up(tmp_path: Path, clock: list[float]) -> None:
    marker = marking.Marker(tmp_path, "one", warmup=5, seconds=2.0)
    assert _turns(marker, 5, 99, clock, 0.125) == 5 + 16
    marker.save()
    marks = json.loads((tmp_path / "one.marks.json").read_text())
    assert marks[0] == [0, 100.0]
    assert marks[-1] == [21, 100.0 + 21 * 0.125]


def test_a_slow_loop_makes_a_minimum_of_turns(tmp_path: Path, clock: list[float]) -> None:
    marker = marking.Marker(tmp_path, "one", warmup=1, seconds=2.0)
    assert _turns(marker, 1, 99, clock, 50.0) == 1 + marking.LEAST_TURNS


def test_the_time_begins_when_the_peers_are_warm_too(tmp_path: Path, clock: list[float]) -> None:
    marker = marking.Marker(tmp_path, "one", warmup=0, seconds=1.0, peers=2)
    for turn in range(20):
        assert marker.mark(turn)
        clock[0] += 0.5
    (tmp_path / "two.warm").touch()
    assert _turns(marker, 1, 99, clock, 0.5) == 2


def test_a_peer_without_work_does_not_delay_the_others(tmp_path: Path, clock: list[float]) -> None:
    marker = marking.Marker(tmp_path, "one", warmup=0, seconds=1.0, peers=2)
    assert _turns(marker, 1, 99, clock, 1.0) == marking.PATIENCE_S + 4


def test_the_number_of_turns_follows_from_the_later_half_of_the_warm_up(tmp_path: Path, clock: list[float]) -> None:
    marker = marking.Marker(tmp_path, "one", warmup=9, seconds=1.0)
    for turn, each in enumerate([5.0] * 5 + [0.25] * 5):
        marker.mark(turn)
        clock[0] += each
    assert marker.turns_in(2.0) == 8


def test_the_wait_for_a_missing_peer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marking, "MEETING_S", 0.05)
    with pytest.raises(TimeoutError, match="not all of 2"):
        marking.Marker(tmp_path, "one", warmup=1, seconds=1.0, peers=2).meet()
    marking.Marker(tmp_path, "two", warmup=1, seconds=1.0, peers=2).meet()
