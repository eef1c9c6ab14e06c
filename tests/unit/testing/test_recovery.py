"""When a fault counts as recovered from, on scripted statuses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.testing.statuses import seen

from paceline.testing.chaos.plan import Fault, Kind
from paceline.testing.chaos.recovery import Recovery
from paceline.testing.chaos.watch import Process, Seen

BEFORE = seen(at=100.0, version=5)


def recovery(kind: Kind, name: str, *, workers: int = 3) -> Recovery:
    victim = BEFORE.processes.get(name)
    role = name.split("-")[0]
    return Recovery(Fault(kind, role), 100.0, BEFORE, victim, workers, 2)


def test_a_killed_worker_must_be_back_and_a_commit_made() -> None:
    it = recovery(Kind.KILL, "worker-1")
    assert not it.see(seen(100.02, 7)), "what was committed by then was on its way"
    assert not it.see(seen(100.1, 7, pids={"worker-1": 0}))
    assert it.missing == [
        "a commit above version 7",
        "worker-1 with another pid than 31",
        "3 workers (there are 2)",
    ]
    assert not it.see(seen(100.4, 8, pids={"worker-1": 0}))
    assert it.committed_s == pytest.approx(0.4)
    assert not it.see(seen(101.0, 20)), "the old pid: nobody has noticed yet"
    assert it.see(seen(102.0, 60, pids={"worker-1": 44}))
    assert it.committed_s == pytest.approx(0.4), "the first commit counts"
    assert it.missing == ["worker-1 with another pid than 31"], "what it waited for at last"


def test_a_killed_coordinator_counts_from_what_the_new_one_found_in_the_log() -> None:
    it = recovery(Kind.KILL, "coordinator")
    assert it.missing == ["a coordinator that answers"]
    assert not it.see(seen(100.01, 6)), "an answer that was still on its way"
    assert "generation 2 of the coordinator" in it.missing
    back: dict[str, Any] = {"generation": 2, "pids": {"coordinator": 11}}
    assert not it.see(seen(101.2, 7, workers_alive=0, **back)), "version 7 was in the log"
    assert it.committed_s is None
    assert not it.see(seen(101.5, 8, workers_alive=2, **back))
    assert it.committed_s == pytest.approx(1.5)
    assert it.see(seen(101.6, 9, **back))


def test_a_killed_server_counts_from_where_the_new_incarnation_begins() -> None:
    it = recovery(Kind.KILL, "server-0")
    assert not it.see(seen(100.1, 9, pids={"server-0": 0})), "commits of the old incarnation do not count"
    assert it.committed_s is None
    again: dict[str, Any] = {"incarnation": 1, "pids": {"server-0": 25}}
    assert not it.see(seen(101.0, 4, rewinding=True, **again))
    assert "the end of the rewind" in it.missing
    assert not it.see(seen(102.0, 4, **again))
    assert it.see(seen(102.5, 5, **again)), "below what it was, and yet the next commit"
    assert it.committed_s == pytest.approx(2.5)


def test_a_stopped_worker_need_only_be_there() -> None:
    it = recovery(Kind.STOP, "worker-0")
    assert not it.see(seen(100.1, 5, pids={"worker-0": 0}))
    assert "worker-0 among the processes" in it.missing
    assert it.see(seen(100.5, 6)), "with the same pid"


def test_a_worker_that_left_is_gone() -> None:
    it = recovery(Kind.TERM, "worker-2", workers=2)
    assert not it.see(seen(100.1, 5))
    assert not it.see(seen(100.2, 6))
    assert it.missing == ["worker-2 gone from the processes"]
    assert it.see(seen(100.3, 7, pids={"worker-2": 0}))


def test_a_joined_worker_that_was_killed_does_not_come_back() -> None:
    it = recovery(Kind.KILL, "worker-2", workers=2)
    it.returns = False
    assert not it.see(seen(100.1, 5))
    assert not it.see(seen(100.2, 6))
    assert it.missing == ["worker-2 gone from the processes"]
    assert it.see(seen(100.3, 7, pids={"worker-2": 0}))


def test_everything_killed_needs_all_of_it_new() -> None:
    it = Recovery(Fault(Kind.ALL, "run"), 100.0, BEFORE, None, 3, 1)
    pids = {name: pid + 100 for name, pid in {"coordinator": 10, "server-0": 20, "worker-0": 30}.items()}
    assert not it.see(seen(104.0, 3, generation=2, incarnation=1, pids={**pids, "server-1": 0}, workers_alive=0))
    assert not it.see(seen(104.5, 4, generation=2, incarnation=1, pids={**pids, "server-1": 0}, workers_alive=2))
    assert it.see(seen(105.0, 5, generation=2, incarnation=1, pids={**pids, "server-1": 0}))
    assert it.committed_s == pytest.approx(4.5)


def test_one_more_worker() -> None:
    it = Recovery(Fault(Kind.JOIN, "worker"), 100.0, BEFORE, None, 4, 2)
    assert not it.see(seen(100.5, 5))
    assert not it.see(seen(101.0, 6))
    assert it.missing == ["4 workers (there are 3)"]
    assert it.see(seen(102.0, 9, pids={"worker-j1": 50}))


def test_a_history_that_begins_anew_begins_the_count_anew() -> None:
    it = recovery(Kind.KILL, "worker-1")
    assert not it.see(seen(100.1, 5, pids={"worker-1": 0}))
    rewound: Seen = seen(101.0, 2, incarnation=1, pids={"worker-1": 0})
    assert not it.see(rewound)
    assert not it.see(seen(102.0, 3, incarnation=1, pids={"worker-1": 0}))
    assert it.committed_s == pytest.approx(2.0)


def test_roles() -> None:
    assert BEFORE.of_role("worker")[1] == Process("worker-1", "worker", 31)
    assert [p.name for p in BEFORE.of_role("coordinator")] == ["coordinator"]
