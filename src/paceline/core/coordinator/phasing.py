"""Phases as workers enter, declare and stop them."""

from __future__ import annotations

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.commits import Commits
from paceline.core.effects import Effect, PhaseFact, Send, StopFact, ValidatorFact
from paceline.errors import MismatchError
from paceline.messages import (
    BeginPhase,
    Declare,
    Ok,
    PhaseBegun,
    Revoke,
    Stop,
)
from paceline.types import (
    NodeId,
)


class Phasing:
    """Begins and ends phases."""

    def __init__(self, books: Books, commits: Commits) -> None:
        self._job = books
        self._commits = commits

    def declare(self, sender: NodeId, message: Declare) -> list[Effect]:
        """A worker declares its n-th validation."""
        known, new = self._job.evaluations.validators, message.validator
        name = self._job.members.members[sender].name
        if new.number > len(known):
            raise MismatchError(f"{name} declared validation {new.number}, but only {len(known)} are known before it")
        effects: list[Effect] = []
        if new.number == len(known):
            known.append(new)
            effects.append(self._job.fact(ValidatorFact(new)))
        elif new != known[new.number]:
            raise MismatchError(
                f"{name} declared validation {new.number} as {new}, "
                f"others as {known[new.number]}: every worker must run the same script"
            )
        self._job.declared[sender] = max(self._job.declared.get(sender, 0), new.number + 1)
        return [*effects, Send(sender, Ok(message.req))]

    def begin(self, sender: NodeId, message: BeginPhase) -> list[Effect]:
        """A worker enters its n-th `batches`."""
        if self._job.state == "finished":
            self._job.attendance.leave(sender)
            reply = PhaseBegun(message.req, self._job.generation, None)
            return [Send(sender, reply), *self._commits.release_phase_pins()]
        assert self._job.job is not None
        number = message.phase.number
        segment = self._job.phases.begin(message.phase, self._job.job, self._job.members.members[sender].name)
        self._job.attendance.enter(sender, number)
        self._job.progress[sender] = max(self._job.progress.get(sender, -1), 2 * number)
        effects: list[Effect] = []
        if segment is not None:
            effects.append(self._job.fact(PhaseFact(message.phase, segment)))
            closing = self._job.limit_phase()
            if closing is not None:
                assert self._job.stop_reason is not None
                effects.append(self._job.fact(StopFact(self._job.stop_reason, closing, closing.step)))
            effects += [Send(s, self._job.plan()) for s in self._job.holders]
        effects.append(
            Send(sender, PhaseBegun(message.req, self._job.generation, self._job.phases.phases[number].segment))
        )
        if segment is not None:
            effects += self._commits.end_phase_if_done() + self._job.serve()
        return effects + self._commits.release_phase_pins()

    def stop(self, sender: NodeId, message: Stop) -> list[Effect]:
        """End the job after a step, or at the last committed version."""
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        phase = self._job.phases.open
        self._job.stop_reason = self._job.stop_reason or message.reason
        if phase is None and self._job.version < 0:
            # The job went back to its very beginning: it ends where it was told to, when it comes there.
            self._job.limit = 0 if message.at_once else message.step + 1
            return [self._job.fact(StopFact(self._job.stop_reason, None, self._job.limit)), *effects]
        if self._job.state == "finished" or phase is None:
            if self._job.state != "finished":
                self._job.state, self._job.limit = "finished", self._job.watermark.low
                effects.insert(0, self._job.fact(StopFact(self._job.stop_reason, None, self._job.limit)))
            return effects + self._job.serve()
        end = self._job.watermark.low if message.at_once else message.step + 1
        if not message.at_once and self._job.schedule.window(self._job.watermark.low) != 0:
            # With a window, commits are not in step order: what is leased is still computed.
            end = max(end, self._job.leases.highest_step + 1)
        limit = min(max(end, self._job.watermark.low), phase.end)
        self._job.limit = limit if self._job.limit is None else min(limit, self._job.limit)
        closing = self._job.limit_phase()
        effects.insert(0, self._job.fact(StopFact(self._job.stop_reason, closing, self._job.limit)))
        effects += [
            Send(ls.worker, Revoke(self._job.generation, ls.fence)) for ls in self._job.leases.beyond(phase.end)
        ]
        self._job.gate.drop_beyond(phase.end)
        return effects + self._commits.end_phase_if_done() + self._job.serve()
