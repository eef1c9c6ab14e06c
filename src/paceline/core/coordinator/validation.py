"""Validation as leased work: when a round is due, which validators workers declare, what happens with a result.

Rule 8: timing does not decide which versions are validated. A round stays on its version, which is pinned.
"""

from __future__ import annotations

import msgspec

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    Output,
    PhaseEnded,
    PlacementDecided,
    RoundEnded,
    SlotEvaluated,
    StepCommitted,
    VersionsKept,
    WorkerJoined,
    WorkersGone,
    WorkFreed,
)
from paceline.core.coordinator.pins import Pins
from paceline.core.effects import EvaluationRow, History, Send, ValidatorFact, Write
from paceline.errors import MismatchError
from paceline.messages import Declare, Ok, Position, Revoke, ValidatorSpec
from paceline.types import Fence, NodeId


class Validation:
    """Opens rounds of validation and takes their results."""

    def __init__(self, tables: Tables, pins: Pins) -> None:
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._rounds = tables.rounds
        self._pins = pins

    def restore(self, history: History) -> list[Output]:
        """Take over the validators and the results of the log."""
        for row in history.facts:
            if isinstance(row.fact, ValidatorFact) and row.fact.validator.number == len(self._rounds.validators):
                self._rounds.add(row.fact.validator)
        self.reset(self._incarnation.position)
        for result in history.evaluations:
            self._rounds.recall(result.validator, result.version, result.values)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Close all rounds, and return to the results on versions up to `position`. Validators stay declared."""
        self._rounds.reset(() if position is None else position.results, -1 if position is None else position.version)
        return []

    def declare(self, sender: NodeId, message: Declare) -> list[Output]:
        """Take the validation that a worker declares; the first worker that declares a number defines it.

        Raises:
            MismatchError: another worker declared this number differently.
        """
        known, new, name = self._rounds.validators, message.validator, self._members.name(sender)
        if new.number > len(known):
            raise MismatchError(
                f"{name} declared the validation {new.name} as its number {new.number + 1}, but the job knows only "
                f"{len(known)}: every worker must call job.validate and job.evaluate in the same order"
            )
        out: list[Output] = []
        if new.number == len(known):
            self._rounds.add(new)
            out.append(ValidatorFact(new))
        elif known[new.number].series < 0 and new == msgspec.structs.replace(known[new.number], series=new.series):
            self._rounds.place(new)  # a log of Paceline 0.1 has no series
        elif new != known[new.number]:
            raise MismatchError(
                f"{name} declared {_described(new)} as its validation number {new.number + 1}, the job has "
                f"{_described(known[new.number])}: every worker, and every resume of the run, must call job.validate "
                "and job.evaluate with the same arguments in the same order"
            )
        self._rounds.declare(sender, new.number + 1)
        return [*out, Send(sender, Ok(message.req))]

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Note how many validators the worker knows, as it reports."""
        self._rounds.declare(event.node, event.message.declared)
        return []

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Free the validation slots that the workers held."""
        for worker in event.workers:
            self._rounds.revoke(worker)
        return []

    def void(self, event: PlacementDecided) -> list[Output]:
        """Tell the holders of validation slots to ask again: the blocks that they read may be on other servers."""
        generation = self._identity.generation
        return [Send(node, Revoke(generation, fence)) for node, fence in self._rounds.held()]

    # ------------------------------------------------------------ rounds

    def committed(self, event: StepCommitted) -> list[Output]:
        """Open the rounds that the new version is due for."""
        if self._rounds.validators:
            self._open_due(last=False)
        return []

    def phase_ended(self, event: PhaseEnded) -> list[Output]:
        """Open a round of every periodic validator on the last version of the phase."""
        self._open_due(last=True)
        return []

    def _open_due(self, *, last: bool) -> None:
        version = self._log.version
        for validator in self._rounds.due(version, last=last):
            self._open(validator, version, self._log.watermark.low)

    def _open(self, validator: ValidatorSpec, version: int, step: int) -> None:
        if self._rounds.open(validator, version, step) is not None:
            self._pins.pin_for_validation(version)

    def versions_kept(self, event: VersionsKept) -> list[Output]:
        """Open the rounds again that have no result, on versions that every server has kept."""
        ends = {phase.end_version for phase in self._phases.phases}
        for version in event.versions:
            for validator in self._rounds.due(version, last=version in ends):
                if not self._rounds.is_validated(validator.number, version):
                    self._open(validator, version, version)
        return []

    def request(self, number: int) -> None:
        """A worker waits for a result of validator `number`: open a round unless one is open or has a result."""
        rounds = self._rounds
        if number in rounds.latest or any(r.validator.number == number for r in rounds.running.values()):
            return
        self._open(rounds.validators[number], self._log.version, self._log.watermark.low)

    def evaluated(self, event: SlotEvaluated) -> list[Output]:
        """Take the sums of one slot; after the last slot, make the result durable."""
        ended = self._rounds.report(event.report)
        if ended is None:
            return []
        validator, metrics = ended.validator, ended.metrics()
        row = EvaluationRow(
            self._incarnation.number, ended.version, ended.step, validator.name, metrics, validator.number
        )
        last = not self._rounds.concerns(ended.version)
        return [Write(row), RoundEnded(validator.name, ended.version, metrics, last, validator.number), WorkFreed()]

    # ------------------------------------------------------------ what leasing does with slots

    def declared(self, worker: NodeId, number: int) -> None:
        """Note that `worker` knows the first `number` validators."""
        self._rounds.declare(worker, number)

    def abandon(self, fence: Fence) -> bool:
        """Take back the slot with that fence from its holder; True if its round is open."""
        return self._rounds.abandon(fence) is not None

    def revoke(self, worker: NodeId) -> bool:
        """Free the slots that `worker` held and has forgotten; True if there was one."""
        return self._rounds.revoke(worker)

    def grant(self, worker: NodeId, fence: Fence) -> tuple[int, int, int, int] | None:
        """Lease the next free slot to `worker`; returns round, validator, slot and version, None if no slot is free."""
        granted = self._rounds.grant(worker, fence, self._rounds.declared.get(worker, 0))
        if granted is None:
            return None
        round_, slot = granted
        return round_.number, round_.validator.number, slot, round_.version


def _described(validator: ValidatorSpec) -> str:
    """A validator, in words."""
    when = f"every {validator.every} steps" if validator.every else "by job.evaluate"
    return f"{validator.name} ({when}, {validator.data_len} samples in batches of {validator.batch_size})"
