"""When a run has recovered from a fault, on scripted statuses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.statuses import seen

from paceline.testing.chaos.plan import Fault, Kind
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.watch import Process, Seen

BEFORE = seen(at=100.0, version=5)


def recovery(kind: Kind, name: str, *, workers: int = 3) -> Recovering:
    victim = BEFORE.processes.get(name)
    role = name.split("-")[0]
    return Recovering(Fault(kind, role), 100.0, BEFORE, victim, workers, 2)


def test_a_run_has_recovered_from_a_killed_worker_after_its_return_and_a_commit() -> None:
    it = recovery(Kind.KILL, "worker-1")
    assert not it.see(seen(100.02, 7)), "a commit right after the kill was already on its way"
    assert not it.see(seen(100.1, 7, pids={"worker-1": 0}))
    assert it.missing == [
        "a commit above version 7",
        "worker-1 with another pid than 31",
        "3 workers (there are 2)",
    ]
    assert not it.see(seen(100.4, 8, pids={"worker-1": 0}))
    assert it.committed_s == pytest.approx(0.4)
    assert not it.see(seen(101.0, 20)), "the status still has the old pid"
    assert it.see(seen(102.0, 60, pids={"worker-1": 44}))
    assert it.committed_s == pytest.approx(0.4), "the first commit counts"
    assert it.missing == ["worker-1 with another pid than 31"], (
        "the recovery names the last condition that it waited for"
    )


def test_after_a_killed_coordinator_the_next_commit_is_above_the_restored_version() -> None:
    it = recovery(Kind.KILL, "coordinator")
    assert it.missing == ["a coordinator that answers"]
    assert not it.see(seen(100.01, 6)), "the answer of the old coordinator was still on its way"
    assert "generation 2 of the coordinator" in it.missing
    back: dict[str, Any] = {"generation": 2, "pids": {"coordinator": 11}}
    assert not it.see(seen(101.2, 7, workers_alive=0, **back)), "version 7 was in the log"
    assert it.committed_s is None
    assert not it.see(seen(101.5, 8, workers_alive=2, **back))
    assert it.committed_s == pytest.approx(1.5)
    assert it.see(seen(101.6, 9, **back))


def test_after_a_killed_server_the_next_commit_is_in_the_new_incarnation() -> None:
    it = recovery(Kind.KILL, "server-0")
    assert not it.see(seen(100.1, 9, pids={"server-0": 0})), "commits of the old incarnation do not count"
    assert it.committed_s is None
    again: dict[str, Any] = {"incarnation": 1, "pids": {"server-0": 25}}
    assert not it.see(seen(101.0, 4, rewinding=True, **again))
    assert "the end of the rewind" in it.missing
    assert not it.see(seen(102.0, 4, **again))
    assert it.see(seen(102.5, 5, **again)), "the version is below that before the fault, but it is the next commit"
    assert it.committed_s == pytest.approx(2.5)


def test_a_stopped_worker_keeps_its_pid() -> None:
    it = recovery(Kind.STOP, "worker-0")
    assert not it.see(seen(100.1, 5, pids={"worker-0": 0}))
    assert "worker-0 among the processes" in it.missing
    assert it.see(seen(100.5, 6)), "a stopped worker returns with the same pid"


def test_a_terminated_worker_must_be_gone() -> None:
    it = recovery(Kind.TERM, "worker-2", workers=2)
    assert not it.see(seen(100.1, 5))
    assert not it.see(seen(100.2, 6))
    assert it.missing == ["the end of worker-2"]
    assert it.see(seen(100.3, 7, pids={"worker-2": 0}))


def test_a_killed_joined_worker_does_not_return() -> None:
    it = recovery(Kind.KILL, "worker-2", workers=2)
    it.returns = False
    assert not it.see(seen(100.1, 5))
    assert not it.see(seen(100.2, 6))
    assert it.missing == ["the end of worker-2"]
    assert it.see(seen(100.3, 7, pids={"worker-2": 0}))


def test_after_a_kill_of_everything_generation_and_incarnation_are_new() -> None:
    it = Recovering(Fault(Kind.ALL, "run"), 100.0, BEFORE, None, 3, 1)
    pids = {name: pid + 100 for name, pid in {"coordinator": 10, "server-0": 20, "worker-0": 30}.items()}
    assert not it.see(seen(104.0, 3, generation=2, incarnation=1, pids={**pids, "server-1": 0}, workers_alive=0))
    assert not it.see(seen(104.5, 4, generation=2, incarnation=1, pids={**pids, "server-1": 0}, workers_alive=2))
    assert it.see(seen(105.0, 5, generation=2, incarnation=1, pids={**pids, "server-1": 0}))
    assert it.committed_s == pytest.approx(4.5)


def test_a_joined_worker_must_be_alive() -> None:
    it = Recovering(Fault(Kind.JOIN, "worker"), 100.0, BEFORE, None, 4, 2)
    assert not it.see(seen(100.5, 5))
    assert not it.see(seen(101.0, 6))
    assert it.missing == ["4 workers (there are 3)"]
    assert it.see(seen(102.0, 9, pids={"worker-j1": 50}))


def test_a_new_incarnation_restarts_the_count_of_commits() -> None:
    it = recovery(Kind.KILL, "worker-1")
    assert not it.see(seen(100.1, 5, pids={"worker-1": 0}))
    rewound: Seen = seen(101.0, 2, incarnation=1, pids={"worker-1": 0})
    assert not it.see(rewound)
    assert not it.see(seen(102.0, 3, incarnation=1, pids={"worker-1": 0}))
    assert it.committed_s == pytest.approx(2.0)


def test_processes_are_listed_by_role() -> None:
    assert BEFORE.of_role("worker")[1] == Process("worker-1", "worker", 31)
    assert [p.name for p in BEFORE.of_role("coordinator")] == ["coordinator"]


HELD: dict[str, Any] = {"holders": frozenset({"server-0", "server-1"}), "epoch": 4}


def failover(victim: str = "server-0") -> Recovering:
    before = seen(at=100.0, version=5, **HELD)
    return Recovering(Fault(Kind.KILL, "server"), 100.0, before, before.processes[victim], 3, 2, replicas=1)


def test_after_a_failover_the_next_commit_is_in_the_new_placement() -> None:
    it = failover()
    assert not it.see(seen(100.1, 9, pids={"server-0": 0}, **HELD)), (
        "a commit that was ready before the kill does not count"
    )
    assert it.committed_s is None
    assert "epoch 5 of the placement" in it.missing
    after: dict[str, Any] = {**HELD, "epoch": 5, "short": 3, "holders": frozenset({"server-1"})}
    assert not it.see(seen(100.3, 9, pids={"server-0": 0}, **after))
    assert not it.see(seen(100.8, 10, pids={"server-0": 0}, **after))
    assert it.committed_s == pytest.approx(0.8)
    assert not it.see(seen(102.0, 30, pids={"server-0": 25}, **after))
    assert it.missing == ["a copy of 3 blocks"]
    assert it.see(seen(103.0, 40, pids={"server-0": 25}, **{**HELD, "epoch": 6}))
    assert it.pause_s == pytest.approx(1.2), "the pause is counted from version 10 to the next status"


def test_the_loss_of_a_server_without_blocks_needs_no_new_placement() -> None:
    it = failover()
    it.before = seen(at=100.0, version=5, epoch=4, holders=frozenset({"server-1"}))
    assert not it.see(seen(100.1, 5, epoch=4, pids={"server-0": 25}))
    assert it.see(seen(100.2, 6, epoch=4, pids={"server-0": 25}))


def test_an_added_server_must_get_blocks() -> None:
    before = seen(at=100.0, version=5, **HELD)
    it = Recovering(Fault(Kind.ADD, "server"), 100.0, before, None, 3, 3, new=True)
    it.see(seen(100.1, 5, **HELD))
    three: dict[str, Any] = {"pids": {"server-2": 22}, **HELD}
    assert not it.see(seen(100.2, 6, **three))
    assert it.missing == ["blocks on the new server"]
    assert it.see(seen(100.3, 7, **{**three, "holders": HELD["holders"] | {"server-2"}}))


def test_a_drained_server_must_end() -> None:
    before = seen(at=100.0, version=5, **HELD)
    it = Recovering(Fault(Kind.DRAIN, "server"), 100.0, before, None, 3, 1)
    it.see(seen(100.1, 5, **HELD))
    assert not it.see(seen(100.2, 6, **HELD))
    assert it.missing == ["the end of one of 2 servers"]
    emptied: dict[str, Any] = {"draining": frozenset({"server-1"}), "holders": frozenset({"server-0"})}
    assert not it.see(seen(100.3, 7, pids={"server-1": 0}, **emptied))
    assert it.missing == ["the end of server-1"]
    assert it.see(seen(101.9, 8, pids={"server-1": 0}, holders=frozenset({"server-0"})))
    assert it.pause_s == pytest.approx(1.6)
