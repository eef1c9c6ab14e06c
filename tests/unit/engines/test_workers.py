"""Who works."""

from __future__ import annotations

from paceline.engines.workers import Crew
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_LEFT


def crew_of(size: int) -> Crew:
    crew = Crew(size)
    for _ in range(size):
        crew.hire()
    return crew


def test_more_workers_get_new_names() -> None:
    crew = crew_of(2)
    assert crew.adjust(4) == (2, [])
    assert [crew.hire(), crew.hire()] == ["worker-2", "worker-3"]
    assert crew.target == 4


def test_fewer_workers_the_newest_leave_first() -> None:
    crew = crew_of(4)
    assert crew.adjust(2) == (0, ["worker-3", "worker-2"])
    assert crew.active == ["worker-0", "worker-1"]
    assert crew.leaving == {"worker-2", "worker-3"}
    assert crew.adjust(3) == (1, [])
    assert crew.hire() == "worker-4", "those who leave are not called back"


def test_gone_when_the_last_has_ended() -> None:
    crew = crew_of(2)
    crew.adjust(1)
    crew.ended("worker-0", -9)
    assert not crew.gone, "worker-1 is still handing back"
    crew.ended("worker-1", EXIT_LEFT)
    assert crew.gone
    assert not crew.done


def test_nobody_waits_for_a_leaver_once_the_work_is_done() -> None:
    crew = crew_of(2)
    crew.adjust(1)
    crew.ended("worker-0", EXIT_DONE)
    assert crew.gone
    assert crew.done


def test_starting_over_calls_back_those_who_had_ended_well() -> None:
    crew = crew_of(3)
    crew.ended("worker-0", EXIT_DONE)
    crew.ended("worker-1", -9)
    crew.ended("worker-2", EXIT_DONE)
    assert crew.start_over() == ["worker-0", "worker-2"]
    assert not crew.gone
    assert not crew.done
