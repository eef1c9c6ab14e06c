"""The simulator's checks: each broken rule is a violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from tests.kit.core import segment

from paceline.core.effects import FactRow, IncarnationFact, PhaseFact, PlacementFact, Send, Write
from paceline.core.server.block_store import SumKey
from paceline.messages import Committed, Grant, PhaseOver
from paceline.sim.disk import Disk
from paceline.sim.live import hyper_of
from paceline.sim.log_checks import LogChecks
from paceline.sim.record import Record
from paceline.sim.scenario import make_scenario
from paceline.sim.server_checks import ServerChecks
from paceline.sim.symbols import Gradient, Reads, SymbolStore, Term, Value
from paceline.sim.worker_checks import WorkerChecks, weight
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, Commit, Fence, PhaseSpec, Placement

SEGMENT = segment(slots=1)
INITIAL, FIRST, SECOND = Fence(1, 1), Fence(1, 2), Fence(1, 3)


class Job:
    """A job of one block on one server in lock-step, after its initial weights."""

    def __init__(self) -> None:
        self.record = Record()
        scenario = make_scenario(5)
        self.log = LogChecks(self.record, replace(scenario, careful=True))
        self.workers = WorkerChecks(self.record)
        self.servers = ServerChecks(self.record, self.log, self.workers, hold=1)
        self.store = SymbolStore(self.servers, Disk(), "server-0", lambda: (0, 1))
        self.fact(PlacementFact(Placement(1, ("server-0",), {})))
        self.grant(INITIAL, INIT_STEP)
        self.commit(0, INIT_STEP, INITIAL)
        self.fact(PhaseFact(PhaseSpec(0, 20, 2, 1, 1, True, False), SEGMENT))

    def fact(self, fact: PhaseFact | PlacementFact | IncarnationFact) -> None:
        self.log.wrote(Write(FactRow(0, len(self.record.log) - 1, fact)))

    def grant(self, fence: Fence, step: int, worker: str = "worker-0", epoch: int = 1) -> Job:
        self.log.sends(Send(worker, Grant(1, 1, 0, epoch, step, 0, 1, fence, SEGMENT, False)))
        return self

    def commit(self, version: int, step: int, *fences: Fence, staleness: int = 0) -> Commit:
        made = Commit(0, version, step, fences, hyper_of(step, None), 1.0, False, staleness, 0)
        self.log.wrote(Write(made))
        return made


def first(job: Job) -> Commit:
    """Lease and commit step 0."""
    job.grant(FIRST, 0)
    return job.commit(1, 0, FIRST)


BROKEN: list[tuple[Callable[[Job], object], str]] = [
    (lambda job: job.commit(1, 0, FIRST), "was not a lease of"),
    (lambda job: (job.grant(FIRST, 0), job.commit(2, 0, FIRST)), "commit 2 follows 0"),
    (lambda job: (job.grant(FIRST, 0), job.commit(1, INIT_STEP, FIRST)), "version 1 is made of step -1"),
    (lambda job: (job.grant(FIRST, 0), job.commit(1, 0, FIRST, FIRST)), "has 1 slots, its commit 2 fences"),
    (lambda job: (job.grant(FIRST, 1), job.commit(1, 1, FIRST)), "step 1 is committed before step 0"),
    (lambda job: (job.grant(FIRST, 0), job.commit(1, 0, FIRST, staleness=1)), "has staleness 1, the window is 0"),
    (lambda job: (first(job), job.grant(SECOND, 0), job.commit(2, 0, SECOND)), "step 0 is committed twice"),
    (lambda job: (job.grant(FIRST, 0, epoch=0), job.commit(1, 0, FIRST)), "leased in an earlier placement epoch"),
    (lambda job: (job.grant(FIRST, 0), job.grant(FIRST, 0, "worker-1")), "names two leases"),
    (lambda job: job.log.sends(Send("server-0", _announced(job))), "commit 1 is announced before it is written"),
    (lambda job: job.log.sends(Send("worker-0", _over(1))), "version 1 is announced before it is written"),
    (
        lambda job: job.fact(PlacementFact(Placement(0, ("server-0",), {}))),
        "placement epoch 0 is written after epoch 1",
    ),
    (lambda job: job.fact(IncarnationFact(1, "", None, "blocks were lost")), "servers were lost one at a time"),
    (lambda job: job.servers.added(job.store, SumKey(0, None), _term(slot=1), ()), "is added after 0 slots"),
    (lambda job: job.servers.added(job.store, SumKey(1, None), _term(), ()), "is added to the sum of"),
    (lambda job: job.servers.applied(job.store, SumKey(0, None), _next(job), ()), "applied before it is written"),
    (lambda job: job.servers.copied(job.store, 0, [Value(0, 0, 9)]), "server-0 was sent"),
    (lambda job: job.workers.may_compute(0, _reads(job, 5), "worker-0"), "as version 5 of block 0"),
    (lambda job: job.workers.may_compute(1, _reads(job, 0), "worker-0"), "a mixed read"),
]


def _next(job: Job) -> Commit:
    return msgspec.structs.replace(job.record.log[0], version=1, step=0)


def _announced(job: Job) -> Committed:
    return Committed(1, 1, _next(job))


def _over(version: int) -> PhaseOver:
    return PhaseOver(1, 1, 0, 1, 0, version, 5, False, False, {})


def _term(slot: int = 0) -> Term:
    return Term(0, slot, FIRST, 1.0, {0: Gradient(0, slot, FIRST, 0, 0, Reads(0, (), ()))})


def _reads(job: Job, version: int) -> Reads:
    value = Value(0, 0, 1)
    job.record.line.set_value(0, value, 0, "server-0")
    return Reads(0, (version,), (value,))


@pytest.mark.parametrize(("harm", "named"), BROKEN, ids=[named for _, named in BROKEN])
def test_each_broken_rule_is_reported_as_a_violation(harm: Callable[[Job], object], named: str) -> None:
    with pytest.raises(Violation, match=named):
        harm(Job())


def test_a_job_that_follows_the_rules_has_no_violation() -> None:
    job = Job()
    first(job)
    job.log.sends(Send("server-0", Committed(1, 1, job.record.log[1])))
    job.workers.may_compute(0, _reads(job, 0), "worker-0")
    assert job.log.slots_done == 2
    assert job.record.watermark.low == 1


def test_copies_of_a_version_must_have_equal_values_and_weights() -> None:
    job = Job()
    commit = first(job)
    line = job.record.line
    line.apply(commit, (1.0,))
    with pytest.raises(Violation, match=r"weights \(0.5,\) and \(1.0,\)"):
        line.apply(commit, (0.5,))
    line.set_value(0, Value(0, 0, 1), 0, "server-0")
    with pytest.raises(Violation, match=r"server-1 has .*, another copy"):
        line.set_value(0, Value(0, 0, 2), 0, "server-1")
    with pytest.raises(Violation, match="applies version 3 after 0"):
        line.set_value(3, Value(0, 3, 1), 0, "server-0")


def test_workers_leave_a_phase_with_the_same_version() -> None:
    job = Job()
    first(job)
    reads = Reads(0, (0,), (Value(0, 0, 1),))
    for version in (0, 1):
        job.record.line.set_value(version, Value(0, 0, 1), 0, "server-0")
    job.workers.phase_ended("worker-0", _over(1), reads, was_there=True)
    with pytest.raises(Violation, match="with version 0, others with 1"):
        job.workers.phase_ended("worker-1", _over(0), reads, was_there=True)
    job.workers.phase_ended("worker-2", _over(-1), reads, was_there=False)
    with pytest.raises(Violation, match="was not given its last version"):
        job.workers.phase_ended("worker-2", _over(-1), reads, was_there=True)


def test_a_rewind_without_a_checkpoint_begins_an_empty_history() -> None:
    job = Job()
    first(job)
    assert job.record.rewind(IncarnationFact(1, "", None, "")) == -1
    assert (job.record.incarnation, job.record.log, job.record.watermark.low) == (1, [], 0)
    assert job.record.placement is None
    assert len(job.record.lines[0].log) == 2


def test_the_weight_of_a_slot_is_its_share_of_the_slot_batch() -> None:
    assert weight(segment(data_len=5, batch_size=2, slots=3), 0, 0) == 1.0
    assert weight(segment(data_len=5, batch_size=2, slots=3), 0, 2) == 0.5
