"""Which workers a run has."""

from __future__ import annotations

from paceline.engines.workers import Workers
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_LEFT


def workers_of(size: int) -> Workers:
    workers = Workers(size)
    for _ in range(size):
        workers.add()
    return workers


def test_more_workers_get_new_names() -> None:
    workers = workers_of(2)
    assert workers.adjust(4) == (2, [])
    assert [workers.add(), workers.add()] == ["worker-2", "worker-3"]
    assert workers.target == 4


def test_the_newest_workers_leave_first_when_fewer_are_wanted() -> None:
    workers = workers_of(4)
    assert workers.adjust(2) == (0, ["worker-3", "worker-2"])
    assert workers.active == ["worker-0", "worker-1"]
    assert workers.leaving == {"worker-2", "worker-3"}
    assert workers.adjust(3) == (1, [])
    assert workers.add() == "worker-4", "a leaving worker does not stay; a new one is started"


def test_workers_are_gone_when_the_last_one_has_ended() -> None:
    workers = workers_of(2)
    workers.adjust(1)
    workers.ended("worker-0", -9)
    assert not workers.gone, "worker-1 is still giving back its leases"
    workers.ended("worker-1", EXIT_LEFT)
    assert workers.gone
    assert not workers.done


def test_a_leaving_worker_does_not_count_once_the_work_is_done() -> None:
    workers = workers_of(2)
    workers.adjust(1)
    workers.ended("worker-0", EXIT_DONE)
    assert workers.gone
    assert workers.done


def test_a_restart_of_all_scripts_names_the_workers_that_ended_well() -> None:
    workers = workers_of(3)
    workers.ended("worker-0", EXIT_DONE)
    workers.ended("worker-1", -9)
    workers.ended("worker-2", EXIT_DONE)
    assert workers.start_over() == ["worker-0", "worker-2"]
    assert not workers.gone
    assert not workers.done
