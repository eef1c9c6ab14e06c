"""The tables of a coordinator: the facts that all its machines read. One machine changes each table.

| table | changed by |
| --- | --- |
| `clock` | the dispatcher |
| `identity`, `attendance` | themselves |
| `members` | `membership`; the dispatcher and `heartbeats` note signs of life |
| `incarnation` | `restart`, `rewind` |
| `log`, `gate` | `commits` |
| `phases` | `segments` |
| `placed` | `placement` |
| `reach` | `reachability` |
| `reducers` | nobody: it has no facts of its own |
| `leases`, `speeds` | `leasing` with its parts `offers` and `speculation`; `adoption` |
| `rounds` | `validation` |
| `pins` | `pins` |
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.attendance import Attendance
from paceline.core.coordinator.gate import Gate
from paceline.core.coordinator.job_identity import Identity
from paceline.core.coordinator.reducers import Reducers
from paceline.core.coordinator.tables.clock import Clock
from paceline.core.coordinator.tables.commit_log import CommitLog
from paceline.core.coordinator.tables.incarnation import Incarnation
from paceline.core.coordinator.tables.leases import LeaseBook
from paceline.core.coordinator.tables.members import Members
from paceline.core.coordinator.tables.phases import PhaseBook
from paceline.core.coordinator.tables.pins import PinBook
from paceline.core.coordinator.tables.placement import PlacedBlocks
from paceline.core.coordinator.tables.reachability import Reach
from paceline.core.coordinator.tables.results import ResultBook
from paceline.core.coordinator.tables.rounds import Rounds
from paceline.core.coordinator.tables.worker_speed import WorkerSpeeds
from paceline.types import INIT_STEP, SlotId


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables. A table changes only by its own methods, which only its machine calls."""

    clock: Clock
    identity: Identity
    members: Members
    incarnation: Incarnation
    log: CommitLog
    gate: Gate
    phases: PhaseBook
    attendance: Attendance
    placed: PlacedBlocks
    reach: Reach
    reducers: Reducers
    leases: LeaseBook
    speeds: WorkerSpeeds
    rounds: Rounds
    results: ResultBook
    pins: PinBook


def make_tables(spec: ClusterSpec, generation: int) -> Tables:
    """The tables of a job that has not begun."""
    members = Members(spec.heartbeat_timeout_s, spec.workers, spec.servers)
    incarnation, log, gate, phases = Incarnation(), CommitLog(), Gate(), PhaseBook(spec.workers)
    identity, placed = Identity(spec, generation, members), PlacedBlocks(incarnation)

    def is_done(slot: SlotId) -> bool:
        if slot.step == INIT_STEP:
            return log.version >= 0
        return log.watermark.has(slot.step) or gate.chosen(slot.step, slot.slot) is not None

    return Tables(
        clock=Clock(),
        identity=identity,
        members=members,
        incarnation=incarnation,
        log=log,
        gate=gate,
        phases=phases,
        attendance=Attendance(),
        placed=placed,
        reach=Reach(),
        reducers=Reducers(identity, phases, log, placed),
        leases=LeaseBook(
            phases.schedule,
            generation,
            hold=spec.held,
            max_losses=spec.max_losses,
            done=is_done,
            in_group=lambda: placed.grouped,
        ),
        speeds=WorkerSpeeds(),
        rounds=Rounds(generation << 32),
        results=ResultBook(),
        pins=PinBook(),
    )
