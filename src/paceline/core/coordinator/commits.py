"""Commits: servers and workers report on steps, and this machine commits them in one durable order. Rules 1, 2 and 11.

`gate` says when a step may be committed. The commit is durable before any server gets it.
"""

from __future__ import annotations

from paceline.config.policies import STOP
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.checkpoints import Checkpoints
from paceline.core.coordinator.events import (
    JobFailed,
    Output,
    PlacementDecided,
    SlotReported,
    SlotSealed,
    SlotsSummed,
    StepCommitted,
    StepNews,
    StepsDropped,
)
from paceline.core.coordinator.gate import Passed, clip_scale, disagreement, mean_logs, not_finite
from paceline.core.coordinator.model_differences import hyper_difference
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import ChoiceFact, History, LogRow, PlacementFact, Send, Write
from paceline.messages import Choose, Committed, Position, Ready, Receipt
from paceline.types import INIT_STEP, Commit, Fence, NodeId


class Commits:
    """Owns the commit log and the gate."""

    def __init__(self, tables: Tables, segments: Segments, checkpoints: Checkpoints) -> None:
        self._gate = tables.gate
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._phases = tables.phases
        self._pins = tables.pins
        self._placed = tables.placed
        self._rounds = tables.rounds
        self._segments = segments
        self._checkpoints = checkpoints
        policies = tables.identity.spec.policies
        self._keeps_best, self._looks_for_nan = bool(policies.best), policies.on_nan == STOP

    def restore(self, history: History) -> list[Output]:
        """Take over the commit log, and the attempts that were chosen under the last placement."""
        self._log.restore(history, self._incarnation.position)
        epoch = 0
        for row in history.facts:
            if row.incarnation != history.incarnation:
                continue
            if isinstance(row.fact, PlacementFact):
                if 0 < epoch < row.fact.placement.epoch:
                    self._gate.clear()
                epoch = row.fact.placement.epoch
            elif isinstance(row.fact, ChoiceFact):
                self._gate.decide(row.fact.sealed)
        for step in self._gate.steps():
            if self._log.watermark.has(step):
                self._gate.forget(step)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Return the log to `position`, and forget the reports of the earlier incarnation."""
        self._log.reset(position)
        self._gate.clear()
        return []

    # ------------------------------------------------------------ reports

    def receipt(self, sender: NodeId, message: Receipt) -> list[Output]:
        """Take the receipt of a server that holds its part of one attempt; the attempt may now be chosen."""
        if not self._placed.is_current(message.incarnation, message.epoch) or not self._segments.is_open(message.step):
            return []
        step = message.step
        if message.revision != self._phases.schedule.revision_of(step):
            return []  # of a plan that was replaced (rule 19)
        chosen = self._gate.chosen(step, message.slot)
        if chosen is not None:
            return [Send(sender, self._choose(step, message.slot, chosen))]
        self._gate.receipt(sender, message)
        return self._progress(step, self._segments.needs_one_attempt(step), message.slot, message.fence)

    def ready(self, sender: NodeId, message: Ready) -> list[Output]:
        """Take the report of a server that it is ready for a step; the step may now be committed."""
        step = message.step
        if not self._placed.is_current(message.incarnation, message.epoch) or not self._segments.is_open(step):
            return []
        if message.revision != self._phases.schedule.revision_of(step):
            return []  # of a plan that was replaced (rule 19)
        one_attempt = self._segments.needs_one_attempt(step)
        self._gate.ready(sender, message, one_attempt=one_attempt)
        if message.reports:
            new = [report for report in message.reports if not self._gate.has_sealed(step, report.slot)]
            if new:
                summed = SlotsSummed(sender, step, self._phases.schedule.num_slots(step))
                return [*(SlotReported(report) for report in new), StepNews(step), summed]
        out = self._progress(step, one_attempt)
        # A new coordinator may not know that this server has summed every slot: further slots may now be leased.
        return out or [SlotsSummed(sender, step, self._phases.schedule.num_slots(step))]

    def sealed(self, event: SlotSealed) -> list[Output]:
        """Take the report of a worker that sealed its slot; the attempt may be chosen, or the step committed."""
        report = event.report
        step = report.step
        if not self._gate.sealed(report) or not self._segments.is_open(step):
            return []
        return self._progress(step, self._segments.needs_one_attempt(step), report.slot, report.fence)

    def step_news(self, event: StepNews) -> list[Output]:
        """Commit a step if the reports after a restart of the coordinator allow it."""
        step = event.step
        return self._progress(step, self._segments.needs_one_attempt(step)) if self._segments.is_open(step) else []

    def void(self, event: PlacementDecided) -> list[Output]:
        """Forget receipts, readiness and seals: a change of placement makes them void (rule 5)."""
        self._gate.clear()
        return []

    def steps_dropped(self, event: StepsDropped) -> list[Output]:
        """Forget the reports on steps that will not be computed."""
        self._gate.drop_beyond(event.end_step)
        return []

    # ------------------------------------------------------------ choosing and committing

    def _progress(self, step: int, one_attempt: bool, slot: int = -1, fence: Fence | None = None) -> list[Output]:
        """Choose the attempt with `fence`, or commit `step`, which is open, if the reports on `step` allow it."""
        if self._incarnation.awaited:
            return []
        voters, schedule = self._placed.voters, self._phases.schedule
        slots = schedule.num_slots(step)
        if one_attempt and slots > 1 and fence is not None and not self._placed.grouped:
            if not self._gate.choose(step, slot, fence, voters, self._leases.live):
                return []
            # The choice is durable before a server adds the attempt: a sum cannot be undone after a restart.
            choose = self._choose(step, slot, fence)
            return [ChoiceFact(self._gate.report(step, fence)), *(Send(s, choose) for s in voters)]
        if step != self._log.watermark.low and step != INIT_STEP and schedule.window(step) == 0:
            return []
        passed = self._gate.passed(step, slots, voters, one_attempt=one_attempt, valid=self._leases.live)
        return [] if passed is None or (self._keeps_best and self._is_held_back(step)) else self._commit(passed)

    def _is_held_back(self, step: int) -> bool:
        """Whether the commit of `step` waits for the checkpoint under way, as its version may be one of the best."""
        phase = self._phases.open
        is_last = phase is not None and step + 1 >= phase.end
        return self._checkpoints.saving is not None and self._checkpoints.kept.may_be_best(
            self._log.version + 1, last=is_last
        )

    def choices(self) -> list[Choose]:
        """The attempts that were chosen on steps that are not committed."""
        gate = self._gate
        return [self._choose(step, slot, fence) for step in gate.steps() for slot, fence in gate.choices(step)]

    def _choose(self, step: int, slot: int, fence: Fence) -> Choose:
        return Choose(self._identity.generation, self._incarnation.number, self._placed.epoch, step, slot, fence)

    def _commit(self, passed: Passed) -> list[Output]:
        step, fences, seals, ready = passed
        conflict = disagreement(seals) if len(seals) > 1 else None
        if conflict is not None:
            a, b, first, second = conflict
            mine, other = hyper_difference(first, second)
            reason = (
                f"slots {a} and {b} of step {step} disagree on the hyper-parameters of the optimizer ({mine} against "
                f"{other}): change them by a prepared scheduler, or as a function of job.step only"
            )
            return [JobFailed("script", reason)]
        assert self._identity.model is not None
        log, incarnation, clip_norm = self._log, self._incarnation.number, self._identity.model.clip_norm
        version, first_weights = log.version + 1, step == INIT_STEP
        reports = ready[1:]
        commit = Commit(
            incarnation,
            version,
            step,
            fences,
            seals[0].hyper,
            1.0 if clip_norm is None or first_weights else clip_scale(ready, clip_norm),
            bool(self._rounds.validators and self._rounds.due(version, last=False)),
            max([r.staleness for r in ready]) if reports else ready[0].staleness,
            max([r.lag for r in ready]) if reports else ready[0].lag,
            0.0 if first_weights else self._samples(passed),
            0 if first_weights else [s.weight for s in seals].count(0),
            self._variants(passed) if reports or ready[0].fences != fences else (),
        )
        out: list[Output] = [Write(commit)]
        values = {} if first_weights else mean_logs(seals)
        if values:
            out.append(Write(LogRow(incarnation, version, step, values)))
        log.append(commit, values)
        self._gate.forget(step)
        phase = self._phases.open
        save = self._checkpoints.is_due(version, last=phase is not None and log.watermark.low >= phase.end)
        bad = not_finite(seals) if self._looks_for_nan else ()
        out.append(StepCommitted(commit, save, values, bad))
        return out

    def announce(self, event: StepCommitted) -> list[Output]:
        """Send the commit, which is durable by now, to every holder of blocks."""
        announcement = self.announcement(event.commit)
        return [Send(server, announcement) for server in self._placed.holders]

    def announcement(self, commit: Commit) -> Committed:
        """The message that tells a server of `commit`."""
        keep, save = commit.version - 1 in self._pins, commit.version == self._checkpoints.saving
        return Committed(self._identity.generation, self._placed.epoch, commit, keep, save)

    def missed(self, version: int, limit: int | None = None) -> list[Committed]:
        """Announcements of the commits after `version`, for a server that has missed them."""
        return [self.announcement(commit) for commit in self._log.since(version)[:limit]]

    def trim(self, applied: int) -> None:
        """Forget the commits up to version `applied`: every holder of blocks has applied them."""
        self._log.trim(applied)

    def _samples(self, passed: Passed) -> float:
        batch = self._phases.schedule.segment(passed.step).batch_size
        return sum([s.weight * batch for s in passed.seals])

    def _variants(self, passed: Passed) -> tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...]:
        """The blocks and attempts of servers that used other, interchangeable, attempts than the commit names."""
        placement = self._placed.placement
        assert placement is not None
        named = passed.fences
        if all(ready.fences == named for ready in passed.ready):
            return ()
        return tuple(
            (placement.owned(server), ready.fences)
            for server, ready in zip(sorted(self._placed.voters), passed.ready, strict=True)
            if ready.fences != named
        )
