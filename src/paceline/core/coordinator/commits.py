"""Commits: the gate, the log, the end of phases, the rounds of validation that a version is due for."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.checkpoints import Keeping
from paceline.core.coordinator.gate import Passed, clip_scale, disagreement, mean_logs
from paceline.core.effects import ChoiceFact, Effect, EvaluationRow, LogRow, Send, Write
from paceline.messages import (
    Choose,
    Evaluated,
    Ready,
    Receipt,
    Summed,
    Unpin,
)
from paceline.types import (
    INIT_STEP,
    Commit,
    Fence,
    NodeId,
)


class Commits:
    """Turns what servers and workers report into the one durable order.

    `committed` hears of every commit, and whether it goes to a checkpoint: others may have waited for one.
    """

    def __init__(self, books: Books, keeping: Keeping) -> None:
        self.committed: Callable[[bool], list[Effect]] = lambda saving: []
        self._job = books
        self._keeping = keeping

    def receipt(self, sender: NodeId, message: Receipt) -> list[Effect]:
        """A server holds its part of one attempt."""
        if not self._job.is_current(message.incarnation, message.epoch) or not self._job.is_open(message.step):
            return []
        chosen = self._job.gate.chosen(message.step, message.slot)
        if chosen is not None:
            return [Send(sender, self._choose(message.step, message.slot, chosen))]
        self._job.gate.receipt(sender, message)
        return self.progress(message.step, message.slot, message.fence)

    def ready(self, sender: NodeId, message: Ready) -> list[Effect]:
        """A server has what it needs for a step."""
        if not self._job.is_current(message.incarnation, message.epoch) or not self._job.is_open(message.step):
            return []
        self._job.gate.ready(sender, message, whole=self._job.is_whole(message.step))
        effects = self.progress(message.step)
        slots, servers = self._job.schedule.num_slots(message.step), len(self._job.owners)
        # It has summed every slot, which a new coordinator may not have heard: those not yet reported may be leased.
        if not effects and self._job.leases.summed(sender, message.step, slots, servers):
            effects = self._job.serve()
        return effects

    def summed(self, sender: NodeId, message: Summed) -> list[Effect]:
        """A server has summed some more slots of a step."""
        if not self._job.is_current(message.incarnation, message.epoch):
            return []
        moved = self._job.leases.summed(sender, message.step, message.count, len(self._job.owners))
        return self._job.serve() if moved else []

    def progress(self, step: int, slot: int = -1, fence: Fence | None = None) -> list[Effect]:
        """Choose the attempt that news came of, and commit, as far as what is known of `step` allows."""
        if not self._job.is_open(step) or self._job.awaited:
            return []
        servers, slots, whole = self._job.owners, self._job.schedule.num_slots(step), self._job.is_whole(step)
        effects: list[Effect] = []
        if whole and slots > 1 and fence is not None:
            if self._job.gate.choose(step, slot, fence, servers, self._job.leases):
                # Durable before a server adds it: a sum cannot be undone, whoever speaks for the job next.
                effects.append(self._job.fact(ChoiceFact(self._job.gate.report(step, fence))))
                choose = self._choose(step, slot, fence)
                effects += [Send(s, choose) for s in servers]
            return effects
        if step != INIT_STEP and self._job.schedule.window(step) == 0 and step != self._job.watermark.low:
            return effects
        passed = self._job.gate.passed(step, slots, servers, whole=whole, valid=self._job.leases)
        return effects + (self._commit(passed) if passed is not None else [])

    def choices(self) -> list[Choose]:
        """The attempts that were chosen on steps that are not committed."""
        gate = self._job.gate
        return [self._choose(step, slot, fence) for step in gate.steps() for slot, fence in gate.choices(step)]

    def _choose(self, step: int, slot: int, fence: Fence) -> Choose:
        return Choose(self._job.generation, self._job.incarnation, self._job.epoch, step, slot, fence)

    def _commit(self, passed: Passed) -> list[Effect]:
        seals, ready, step = passed.seals, passed.ready, passed.step
        conflict = disagreement(seals)
        if conflict is not None:
            a, b, first, second = conflict
            return self._job.fail(
                "script",
                f"slots {a} and {b} of step {step} disagree on hyper-parameters ({first} against {second}): "
                "change them by a prepared scheduler, or as a function of job.step only",
                "",
            )
        assert self._job.model is not None
        version = self._job.version + 1
        if self._job.evaluations.due(version, last=False):
            self._job.pins.add(version, "evaluation")
        commit = Commit(
            self._job.incarnation,
            version,
            step,
            tuple(s.fence for s in seals),
            seals[0].hyper,
            clip_scale(ready, self._job.model.clip_norm if step != INIT_STEP else None),
            version in self._job.pins,
            max(r.staleness for r in ready),
            max(r.lag for r in ready),
            self._samples(passed),
            sum(1 for s in seals if s.weight == 0) if step != INIT_STEP else 0,
            self._variants(passed),
        )
        effects: list[Effect] = [Write(commit)]
        self._job.version = version
        self._job.watermark.add(step)
        self._job.log.append(commit)
        self._job.last = commit
        self._count(commit)
        phase = self._job.phases.open
        save = self._keeping.is_due(version, last=phase is not None and self._job.watermark.low >= phase.end)
        if save:
            self._keeping.begin(version)
        if step != INIT_STEP:
            values = mean_logs(seals)
            self._job.logs.update(values)
            if values:
                effects.append(Write(LogRow(self._job.incarnation, version, step, values)))
        effects += [Send(s, self._job.announcement(commit)) for s in self._job.holders]
        if self._job.unpin_next is not None and self._job.unpin_next not in self._job.pins:
            unpin = Unpin(self._job.generation, self._job.incarnation, self._job.unpin_next)
            effects += [Send(s, unpin) for s in self._job.holders]
        self._job.unpin_next = None
        self._job.gate.forget(step)
        won = set(commit.fences)
        self._job.totals.wasted_slots += sum(lease.fence not in won for lease in self._job.leases.committed(step))
        self._open_rounds(last=False)
        effects += self.end_phase_if_done()
        if save:
            self._keeping.hold()
        return effects + self.committed(save) + self._job.serve()

    def _samples(self, passed: Passed) -> float:
        if passed.step == INIT_STEP:
            return 0.0
        batch = self._job.schedule.segment(passed.step).batch_size
        return sum(s.weight * batch for s in passed.seals)

    def _variants(self, passed: Passed) -> tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...]:
        """Interchangeable attempts: which servers used others than those that the commit names."""
        assert self._job.placement is not None
        named = tuple(s.fence for s in passed.seals)
        placement, servers = self._job.placement, sorted(self._job.owners)
        return tuple(
            (placement.owned(server), ready.fences)
            for server, ready in zip(servers, passed.ready, strict=True)
            if ready.fences != named
        )

    def _count(self, commit: Commit) -> None:
        if commit.step == INIT_STEP:
            return
        self._job.step = max(self._job.step, commit.step + 1)
        self._job.totals.samples += commit.samples
        self._job.totals.skipped_slots += commit.empty
        self._job.totals.max_staleness = max(self._job.totals.max_staleness, commit.staleness)
        self._job.totals.max_lag = max(self._job.totals.max_lag, commit.lag)

    def end_phase_if_done(self) -> list[Effect]:
        """Close the open phase once all its steps are committed."""
        phase = self._job.phases.open
        if phase is None or self._job.version < 0 or self._job.watermark.low < phase.end:
            return []
        phase.end_version = self._job.version
        self._job.pins.add(self._job.version, f"phase {phase.spec.number}")
        self._job.pinned_phases.append(phase.spec.number)
        effects: list[Effect] = []
        if self._job.stop_reason is not None and self._job.is_at_limit():
            self._job.state = "finished"
        if self._job.closing is not None:
            # Servers may hold slots of steps that will not be; with this version they can let go of them.
            self._job.schedule.append(self._job.closing)
            self._job.closing = None
            self._job.final = self._job.version
            effects += [Send(s, self._job.plan()) for s in self._job.holders]
        self._open_rounds(last=True)
        return effects

    def _open_rounds(self, *, last: bool) -> None:
        for validator in self._job.evaluations.due(self._job.version, last=last):
            if self._job.evaluations.open(validator, self._job.version, self._job.watermark.low) is not None:
                self._job.pins.add(self._job.version, "evaluation")

    def request_evaluation(self, number: int) -> tuple[int, dict[str, float]] | None:
        """The result that somebody waits for; opens a round for it where there is none."""
        known = self._job.evaluations.latest.get(number)
        if known is None and not any(r.validator.number == number for r in self._job.evaluations.rounds.values()):
            validator = self._job.evaluations.validators[number]
            if self._job.evaluations.open(validator, self._job.version, self._job.watermark.low) is not None:
                self._job.pins.add(self._job.version, "evaluation")
            known = self._job.evaluations.latest.get(number)
        return known

    def evaluated(self, report: Evaluated) -> list[Effect]:
        """One validation slot has its sums."""
        ended = self._job.evaluations.report(report)
        if ended is None:
            return []
        row = EvaluationRow(
            self._job.incarnation,
            ended.version,
            ended.step,
            ended.validator.name,
            ended.metrics(),
            ended.validator.number,
        )
        effects: list[Effect] = [Write(row)]
        if not self._job.evaluations.concerns(ended.version):
            effects += self._job.unpin(ended.version, "evaluation")
        return effects + self._job.serve()

    def release_phase_pins(self) -> list[Effect]:
        """The last version of a phase is kept until every live worker in it has gone on."""
        effects: list[Effect] = []
        if self._job.pinned_phases and not self._job.awaited and self._job.now >= self._job.term_until:
            lowest = self._job.attendance.lowest(default=len(self._job.phases.phases))
            for number in [n for n in self._job.pinned_phases if n < lowest]:
                self._job.pinned_phases.remove(number)
                version = self._job.phases.phases[number].end_version
                assert version is not None
                effects += self._job.unpin(version, f"phase {number}")
        return effects
