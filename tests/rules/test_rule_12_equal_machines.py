"""Rule 12, equal machines or whole attempts: attempts are interchangeable only while workers have one fingerprint.

Otherwise each slot counts as one whole attempt, from a new placement epoch on that begins before the unequal worker
gets a lease. Unequal workers or servers are named in a warning and in the summary, or refused.

Upheld by:
- `core.coordinator.machine_kinds`: which machines are unequal
- `core.coordinator.placement.BlockPlacement.worker_joined`: the new epoch
- `core.coordinator.segments.Segments.needs_one_attempt`: the coordinator counts whole attempts
- `core.server.assignment.Assignment.count_by`: so do the servers
- `core.coordinator.warnings.Warnings.worker_joined`: the user is told
- `core.coordinator.membership.Membership.register`: a job of equal machines refuses the process
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.core import BLOCKS, CoordinatorKit, ServerKit, model, sent, written
from tests.kit.placed_job import compute, epoch, kill, replicated_job

from paceline.coordinator.status import summary_of
from paceline.coordinator.timeline import Timeline
from paceline.core.effects import ChoiceFact, PlacementFact, WarningFact
from paceline.messages import Abort, Assign, Grant, Receipt, Revoke
from paceline.types import Placement

OLD, NEW = "x86_64 AVX2, torch 2.8", "x86_64 AVX512, torch 2.8"


def job_with(**machines: str) -> CoordinatorKit:
    return replicated_job(machines={name.replace("_", "-"): kind for name, kind in machines.items()})


def joins(job: CoordinatorKit, worker: str, machine: str) -> list[PlacementFact]:
    """Let another worker join; return the placements that follow."""
    job.machines[worker] = machine
    return written(job.join(worker), PlacementFact)


def test_attempts_are_interchangeable_while_all_workers_have_one_fingerprint() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD)
    assert not job.core.machines.segments.needs_one_attempt(0)
    assert joins(job, "worker-2", OLD) == []
    assert not job.core.machines.segments.needs_one_attempt(0)


def test_an_unequal_worker_begins_an_epoch_of_whole_attempts_before_it_gets_a_lease() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD)
    held = job.lease("worker-0")
    job.machines["worker-2"] = NEW
    effects = job.join("worker-2")
    (fact,) = written(effects, PlacementFact)
    assert (fact.whole_attempts, fact.failover) == (True, False)
    assert [r.fence for r in sent(effects, Revoke, "worker-0")] == [held.fence], "work of the old epoch is void"
    assert {a.one_attempt for a in sent(effects, Assign)} == {True}
    assert sent(effects, Grant, "worker-2") == []
    assert job.core.machines.segments.needs_one_attempt(0)
    assert joins(job, "worker-3", NEW) == [], "one epoch is enough"


def test_with_workers_that_are_unequal_from_the_start_each_slot_is_chosen_as_one_attempt() -> None:
    job = job_with(worker_0=OLD, worker_1=NEW)
    assert job.core.machines.segments.needs_one_attempt(0)
    (first, _) = compute(job, 0)
    effects = [e for s in job.core.tables.placed.owners for e in job.say(s, Receipt(0, epoch(job), 0, 0, first.fence))]
    assert written(effects, ChoiceFact)


def test_a_restarted_coordinator_counts_as_its_servers_do() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD)
    joins(job, "worker-2", NEW)
    job.restart()
    assert job.core.machines.segments.needs_one_attempt(0), "before any worker has registered again"


def test_the_next_epoch_after_the_unequal_worker_has_gone_counts_parts_again() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD)
    joins(job, "worker-2", NEW)
    kill(job, "worker-2")
    assert job.core.machines.segments.needs_one_attempt(0), "servers still count whole attempts in this epoch"
    kill(job, "server-0")
    assert not job.core.machines.segments.needs_one_attempt(0)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_unequal_worker_that_comes_after_all_others_are_gone_begins_an_epoch(restarts: bool) -> None:
    """The workers that are gone may have left attempts on the servers."""
    job = job_with(worker_0=OLD, worker_1=OLD)
    kill(job, "worker-0")
    kill(job, "worker-1")
    if restarts:
        job.restart()
    before = epoch(job)
    (fact,) = joins(job, "worker-2", NEW)
    assert (fact.placement.epoch, fact.whole_attempts, fact.kind) == (before + 1, False, NEW)
    assert joins(job, "worker-3", NEW) == []


@pytest.mark.parametrize("change", [{"mode": "asp", "slots": None}, {"deterministic": False}])
def test_no_epoch_begins_where_slots_count_as_whole_attempts_anyway(change: dict[str, Any]) -> None:
    job = replicated_job(machines={"worker-0": OLD, "worker-1": OLD}, **change)
    assert joins(job, "worker-2", NEW) == []


def test_a_server_counts_attempts_as_its_newest_placement_says() -> None:
    kit = ServerKit()
    kit.push(0, 0, 5, seal=False)
    moved = Placement(2, ("server-0", "server-0"), {"server-0": "here"})
    kit.tell(Assign(1, 0, moved, model(), BLOCKS, True, 0, at=0))
    assert kit.core.attempts.needs_one_attempt(0)


def test_unequal_workers_and_servers_are_named_once_in_a_warning_and_in_the_summary() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD, server_0=OLD, server_1=NEW)
    job.machines["worker-2"] = NEW
    effects = job.join("worker-2")
    (warning,) = written(effects, WarningFact)
    assert "worker-2 computes with" in warning.text
    assert NEW in warning.text
    assert OLD in warning.text
    assert "the bits of the weights depend on which worker" in warning.text
    job.machines["worker-3"] = NEW
    assert written(job.join("worker-3"), WarningFact) == []
    unequal = summary_of(job.core, Timeline(), "", None).unequal
    assert "which worker computed which slot" in unequal
    assert "which server holds which block" in unequal


def test_equal_machines_give_no_warning() -> None:
    job = job_with(worker_0=OLD, worker_1=OLD, server_0=NEW, server_1=NEW, server_2=NEW)
    assert (job.core.machines.warnings.texts, summary_of(job.core, Timeline(), "", None).unequal) == ({}, "")


@pytest.mark.parametrize(("role", "name"), [("worker", "worker-2"), ("server", "server-3")])
def test_same_cpu_refuses_an_unequal_process_by_name_and_the_job_goes_on(role: str, name: str) -> None:
    kinds = dict.fromkeys(("worker-0", "worker-1", "server-0", "server-1", "server-2"), OLD)
    job = replicated_job(machines=kinds, same_cpu=True)
    job.machines[name] = NEW
    (abort,) = sent(job.say(name, job.registration(role, name)), Abort, name)
    assert name in abort.reason
    assert "same_cpu" in abort.reason
    assert name not in job.core.tables.members.members
    assert job.core.failure is None
