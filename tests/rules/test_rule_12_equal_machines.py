"""Rule 12, equal machines or whole attempts: attempts are interchangeable only while workers have one fingerprint.

Otherwise each slot counts as one whole attempt, from a new placement epoch on that begins before the unequal worker
gets a lease. Unequal workers or servers are named in a warning and in the summary, or refused. Every checkpoint
compares the content of copies: a copy that differs is named, and made again.

Upheld by:
- `core.coordinator.machine_kinds`: which machines are unequal
- `core.coordinator.placement.BlockPlacement.worker_joined`: the new epoch
- `core.coordinator.segments.Segments.needs_one_attempt`: the coordinator counts whole attempts
- `core.server.assignment.Assignment.count_by`: so do the servers
- `core.coordinator.warnings.Warnings.worker_joined`: the user is told
- `core.coordinator.membership.Membership.register`: a job of equal machines refuses the process
- `core.coordinator.copy_contents.CopyContents.hashed`: copies that differ
- `core.server.contents.Contents`: what a server reports of the version of a checkpoint
- `server.content_hasher.ContentHasher`, `blocks.block_state.content_hash`: the hashes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit.core import BLOCKS, CoordinatorKit, ServerKit, model, sent, written
from tests.kit.placed_job import compute, epoch, kill, placed, ready, replicated_job, tick
from tests.kit.server import BLOCKS as REAL_BLOCKS
from tests.kit.server_cluster import Cluster, ports

from paceline.coordinator.status import summary_of
from paceline.coordinator.timeline import Timeline
from paceline.core.effects import ChoiceFact, PlacementFact, WarningFact
from paceline.messages import Abort, Assign, Grant, Hashed, Receipt, Revoke
from paceline.server.dense_checkpoints import DenseCheckpoints
from paceline.server.dense_store import DenseStore
from paceline.sim import cluster as simulated
from paceline.sim.fault_kinds import Fault
from paceline.sim.run import play
from paceline.sim.scenario import Scenario, make_scenario
from paceline.sim.symbols import Flipped
from paceline.sim.world import Trace
from paceline.types import NodeId, Placement

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


def test_no_epoch_begins_where_slots_count_as_whole_attempts_anyway() -> None:
    job = replicated_job(machines={"worker-0": OLD, "worker-1": OLD}, deterministic=False)
    assert joins(job, "worker-2", NEW) == []


def test_an_epoch_begins_in_any_mode_because_the_mode_may_change() -> None:
    job = replicated_job(machines={"worker-0": OLD, "worker-1": OLD}, mode="asp", slots=None)
    (fact,) = joins(job, "worker-2", NEW)
    assert fact.whole_attempts


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


# ---------------------------------------------------------------- the content of copies


def saved_job(**changes: Any) -> tuple[CoordinatorKit, NodeId, NodeId]:
    """A job that saves version 1; the primary and the backup of block 0."""
    job = replicated_job(checkpoint_steps=1, **changes)
    ready(job, 0, compute(job, 0))
    return job, placed(job).owners[0], placed(job).backups[0][0]


def contents(job: CoordinatorKit, what: bytes, version: int = 1) -> Hashed:
    return Hashed(0, epoch(job), version, ((0, what),))


@pytest.mark.parametrize("primary_first", [True, False])
def test_a_copy_with_other_content_is_named_and_made_again(primary_first: bool) -> None:
    job, primary, backup = saved_job()
    before = placed(job)
    reports = [(primary, contents(job, b"right")), (backup, contents(job, b"wrong"))]
    first, last = reports if primary_first else reversed(reports)
    assert job.say(*first) == []
    effects = job.say(*last)
    (fact,) = written(effects, PlacementFact)
    assert backup not in fact.placement.copies(0)
    assert all(fact.placement.copies(b) == before.copies(b) for b in range(1, len(before.owners)))
    assert (fact.failover, job.core.tables.incarnation.rewinds) == (False, 0)
    (warning,) = written(effects, WarningFact)
    assert "the checkpoint of version 1 found copies on" in warning.text
    assert f"on {backup} that differ from those on {primary} (block 0)" in warning.text
    tick(job)
    assert [server for server, blocks in placed(job).joining if 0 in blocks] == [backup]


def test_copies_are_compared_at_one_version_of_one_epoch() -> None:
    job, primary, backup = saved_job()
    job.say(primary, contents(job, b"right"))
    assert job.say(backup, contents(job, b"right")) == []
    assert job.say(backup, contents(job, b"wrong", version=0)) == [], "an older version"
    assert job.say(backup, Hashed(0, epoch(job) - 1, 1, ((0, b"wrong"),))) == [], "an older epoch"
    assert job.say(backup, contents(job, b"other", version=2)) == [], "nobody else has reported version 2"
    assert job.say(primary, contents(job, b"right")) == [], "the reports of version 1 are over"


def test_copies_of_unequal_servers_may_differ() -> None:
    """They may round differently, and a warning says so: to make copies again at every checkpoint would not help."""
    machines = {"server-0": OLD, "server-1": NEW, "server-2": "arm"}
    job, primary, backup = saved_job(machines=machines)
    job.say(primary, contents(job, b"right"))
    assert job.say(backup, contents(job, b"wrong")) == []


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(ports("local"), 3, tmp_path)
    yield made
    made.close()


def reported(servers: Cluster) -> dict[NodeId, dict[int, bytes]]:
    """What real servers report when they save the next version."""
    servers.step(save=True)
    version = servers.version
    servers.until(Hashed, servers.nodes, lambda report: report.version == version)
    return {node: dict(m.contents) for node, m in servers.heard if isinstance(m, Hashed) and m.version == version}


@pytest.mark.parametrize("what", ["value", "optimizer state"])
def test_real_servers_report_equal_hashes_until_a_bit_of_a_copy_flips(servers: Cluster, what: str) -> None:
    owners = [n % 3 for n in range(len(REAL_BLOCKS))]
    servers.place(owners, [[(n + 1) % 3] for n in owners])
    for _ in range(3):
        servers.step()
    trained = next(b.index for b in REAL_BLOCKS if owners[b.index] == 0 and b.kind.name == "PARAMETER")
    before = reported(servers)
    for block, owner in enumerate(owners):
        primary, backup = servers.nodes[owner], servers.nodes[(owner + 1) % 3]
        assert before[primary][block] == before[backup][block], block
    store = servers.services[servers.nodes[1]].core.backups.synced[servers.nodes[0]].group.store
    assert isinstance(store, DenseStore)
    held = store.snapshot()[trained]
    target = held.value if what == "value" else next(t for (_, name), t in held.state.items() if name == "exp_avg")
    target.view(-1)[0] += 0.5
    after = reported(servers)
    differing = {b for b, o in enumerate(owners) if after[servers.nodes[o]][b] != after[servers.nodes[(o + 1) % 3]][b]}
    assert differing == {trained}


def test_a_server_without_copies_hashes_nothing(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[object] = []
    monkeypatch.setattr(DenseCheckpoints, "freeze", frozen.append)
    servers.place([0] * len(REAL_BLOCKS), [[] for _ in REAL_BLOCKS])
    servers.step()
    servers.step(save=True)
    assert servers.services[servers.nodes[0]].core.saving.version == 1
    assert frozen == []


def flipping(seed: int) -> Scenario:
    """A schedule in which bits of copies flip, beside its other faults."""
    scenario = make_scenario(seed, servers=3, replicas=1)
    flips = tuple(Fault(at_s=at_s, kind="flip") for at_s in (0.5, 1.5, 3.0))
    return replace(scenario, faults=(*scenario.faults, *flips))


def _has_unequal_copy(job: simulated.Cluster) -> bool:
    """Return whether a copy has a flipped bit that its primary has not: a flipped copy may have become the primary."""
    cores = [server.core for server in job.servers]
    flipped = [(b, isinstance(v, Flipped)) for core in cores for b, v in core.own.store.current.items()]  # type: ignore[attr-defined]
    primary = dict(flipped)
    copies = [group.store.current for core in cores for group in core.backups.groups]  # type: ignore[attr-defined]
    return any(isinstance(v, Flipped) != primary[b] for values in copies for b, v in values.items())


def test_simulated_jobs_find_flipped_bits_and_break_no_rule() -> None:
    flipped = found = left = 0
    for seed in range(40):
        job = simulated.Cluster(flipping(seed), Trace(hashed=False))
        play(job)
        flipped += bool(job.log_checks.flipped)
        found += bool(job.log_checks.different)
        left += _has_unequal_copy(job)
    assert flipped > 20
    assert found > flipped / 4, "jobs in which a checkpoint found a copy that differs"
    assert left < flipped / 5, "jobs in which a bit of a copy flipped after the last checkpoint"
