"""Segments: which steps the job has, phase by phase, and where it stops. Rule 8: segments decide.

The plan of a running job changes only by a new segment, which is durable before every holder of blocks gets the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    AttendanceChanged,
    Output,
    PhaseEnded,
    StepCommitted,
    StepsDropped,
    WarningFound,
    WorkFreed,
)
from paceline.core.coordinator.metric_names import Result
from paceline.core.coordinator.tables.commit_log import CommitLog
from paceline.core.coordinator.tables.leases import LeaseBook
from paceline.core.coordinator.tables.phases import Phase, PhaseBook, of_phase
from paceline.core.effects import History, PhaseFact, SegmentFact, Send, StopFact
from paceline.core.live_plan import LiveChange
from paceline.core.policies.base import Decision, PhaseBegan, Policy
from paceline.core.policies.lowest_stop import ask, lowest_stop
from paceline.messages import BeginPhase, Ok, PhaseBegun, Plan, Position, Stop
from paceline.types import INIT_STEP, DialChange, Measured, NodeId, Segment

_PASSED = (
    "job.stop({reason!r}) of {worker} had no effect: {worker} called it after a loop that the job had finished before, "
    "and the job was not stopped there. A script must decide by job.metrics, or by the result of job.evaluate, which "
    "are the same in every worker and after a restart"
)


class Segments:
    """Begins and ends phases, and stops the job.

    With a `stop_reason` the job ends before step `limit`. `final` is the last version of a job that ended early.
    """

    def __init__(self, tables: Tables, policies: Sequence[Policy] = ()) -> None:
        self.stop_reason: str | None = None
        self.limit: int | None = None
        self.final = -1
        self.finished = False
        self.begun = False
        self._closing: Segment | None = None
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._attendance = tables.attendance
        self._placed = tables.placed
        self._leases = tables.leases
        self._rounds = tables.rounds
        self._policies = tuple(policies)

    # ------------------------------------------------------------ restart and rewind

    def restore(self, history: History) -> list[Output]:
        """Take over the phases and the stop of the log."""
        for row in history.facts:
            if isinstance(row.fact, StopFact):
                self.stop_reason, self.limit = row.fact.reason, row.fact.step
        self._phases.reset(self._incarnation.position)
        for row in history.facts:
            match row.fact:
                case SegmentFact(step, revision, change, reason, segments):
                    if change != DialChange():
                        self._phases.note_change(LiveChange(step, revision, change, reason))
                    if row.incarnation == history.incarnation:
                        self._phases.replan(segments)
                case PhaseFact(spec, segment, more) if row.incarnation == history.incarnation:
                    self._phases.add(spec, (segment, *more))
        self._phases.close_earlier()
        self.begun = self._log.version >= 0
        out = self._settle()
        self._restore_metrics(history)
        return out

    def _restore_metrics(self, history: History) -> None:
        """Set the metrics that workers got at the end of each phase; the last phase needs a complete validation."""
        position = self._incarnation.position
        results: list[Result] = [] if position is None else list(position.results)
        results += [(row.validator, row.version, row.values) for row in history.evaluations]
        phases = self._phases.phases
        for phase in phases:
            end = phase.end_version
            if phase.metrics is not None or end is None:
                continue
            due = self._rounds.due(end, last=True) if phase is phases[-1] else ()
            if all(self._rounds.is_validated(validator.number, end) for validator in due):
                self._phases.set_metrics(phase, self._rounds.metrics_at(end, results))

    def reset(self, position: Position | None) -> list[Output]:
        """Return to the phases of `position`. A phase that began there begins again. A stop stays decided."""
        later, plan = self._phases.phases, self._phases.schedule.segments
        self._phases.reset(position)
        self._closing, self.final, self.finished = None, -1, False
        self.begun = self._log.version >= 0
        out: list[Output] = []
        job, watermark = self._identity.job, self._log.watermark
        free = max(watermark.low, *(step + 1 for step in (-1, *watermark.above[-1:])))
        kept = [] if job is None else self._phases.keep_plan(plan, free, job)  # all later rows of the log (rule 19)
        if kept:
            why = "the plan outlives a rewind"
            out.append(SegmentFact(kept[0].step, kept[0].revision, DialChange(), why, tuple(kept)))
        return out + self._keep_phase(later, plan) + self._settle()

    def _keep_phase(self, later: list[Phase], plan: list[Segment]) -> list[Output]:
        number, watermark = len(self._phases.phases), self._log.watermark
        if number >= len(later) or self._phases.open is not None or watermark.above:
            return []
        spec, segment = later[number].spec, later[number].segment
        if segment.step != watermark.low or self._log.version < 0:
            return []
        more = tuple(s for s in of_phase(plan, number) if s != segment)
        self._phases.add(spec, (segment, *more))
        return [PhaseFact(spec, segment, more)]

    def _settle(self) -> list[Output]:
        """Apply a stop to the restored phases: cut the open phase, and end it or the job if its end is reached."""
        self._limit_phase()
        if (
            self.stop_reason is not None
            and self._phases.open is None
            and self._log.version >= 0
            and _is_at_limit(self.limit, self._log)
        ):
            self.finished, self.final = True, self._log.version
        out = self._end_phase_if_done()
        if self.finished:
            out.append(StepsDropped(self._log.watermark.low))  # drops attempts on steps that are not computed any more
        return out

    # ------------------------------------------------------------ what others read

    @property
    def state(self) -> str:
        """The state of the job: waiting, running, finished or failed."""
        if self._identity.failure is not None:
            return "failed"
        return "finished" if self.finished else "running" if self.begun else "waiting"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, finished or failed."""
        return self.finished or self._identity.failure is not None

    def plan(self) -> Plan:
        """All segments so far."""
        schedule = self._phases.schedule
        return Plan(
            self._identity.generation,
            tuple(schedule.segments),
            self.final,
            self._incarnation.number,
            schedule.revision,
        )

    def is_open(self, step: int) -> bool:
        """Whether `step` may still be committed."""
        if step == INIT_STEP:
            return self._log.version < 0
        phase = self._phases.open
        return phase is not None and phase.segment.step <= step < phase.end and not self._log.watermark.has(step)

    def needs_one_attempt(self, step: int) -> bool:
        """Whether each slot of `step` counts as one attempt, the same on all servers (rule 2)."""
        if self._identity.one_attempt or self._placed.one_attempt or step == INIT_STEP:
            return True
        return self._phases.schedule.window(step) != 0

    def is_ahead(self, progress: int) -> bool:
        """Whether a script with this `progress` has left a phase that the job must compute again."""
        if self._log.version < 0:
            return progress >= 0 and self._incarnation.number > 0
        phases = self._phases.phases
        number = next((i for i, p in enumerate(phases) if p.end_version is None), None)
        return progress >= 2 * len(phases) if number is None else progress > 2 * number

    # ------------------------------------------------------------ what leasing tells

    def start_running(self) -> None:
        """Note that a slot was leased: the job is running."""
        self.begun = True

    def fix_metrics(self, phase: Phase | None) -> dict[str, Measured]:
        """The metrics for a worker that leaves `phase`: the newest ones at the time when the first worker left it."""
        metrics = None if phase is None else phase.metrics
        if metrics is None:
            metrics = self._rounds.metrics()
            if phase is not None:
                self._phases.set_metrics(phase, metrics)
        return metrics

    # ------------------------------------------------------------ phases begin and end

    def begin(self, sender: NodeId, message: BeginPhase) -> list[Output]:
        """A worker enters a phase; the first worker that does begins it. After the end of the job no phase begins."""
        generation, number = self._identity.generation, message.phase.number
        if self.finished:
            # A phase that the job has done has its segment: the worker needs its steps and epochs.
            phases = self._phases.phases
            done = self._phases.last_segment(phases[number]) if number < len(phases) else None
            self._attendance.leave(sender)
            return [Send(sender, PhaseBegun(message.req, generation, done)), AttendanceChanged()]
        assert self._identity.job is not None
        segments = self._phases.begin(message.phase, self._identity.job, self._members.name(sender))
        self._attendance.ask(sender, number)
        out: list[Output] = []
        if segments:
            out.append(PhaseFact(message.phase, segments[0], tuple(segments[1:])))
            closing = self._limit_phase()
            if closing is not None:
                assert self.stop_reason is not None
                out.append(StopFact(self.stop_reason, closing, closing.step))
            out += self._plans()
        last = self._phases.last_segment(self._phases.phases[number])
        out.append(Send(sender, PhaseBegun(message.req, generation, last)))
        if segments:
            out += [*self._end_phase_if_done(), WorkFreed()]
        out.append(AttendanceChanged())
        return out

    def _plans(self) -> list[Output]:
        return [Send(server, self.plan()) for server in self._placed.holders]

    def committed(self, event: StepCommitted) -> list[Output]:
        """Close the open phase once all its steps are committed."""
        return self._end_phase_if_done()

    def _end_phase_if_done(self) -> list[Output]:
        phase, version = self._phases.open, self._log.version
        if phase is None or version < 0 or self._log.watermark.low < phase.end:
            return []
        self._phases.close(version)
        out: list[Output] = [PhaseEnded(phase.spec.number, version)]
        if self.stop_reason is not None and _is_at_limit(self.limit, self._log):
            self.finished = True
        if self._closing is not None:
            # Servers may hold slots of steps after the end: they drop them when the plan names the final version.
            self._phases.cut(self._closing)
            self._closing = None
            self.final = version
            out += self._plans()
        return out

    # ------------------------------------------------------------ live changes

    def change(self, step: int, change: DialChange, reason: str) -> list[Output]:
        """Let other dials hold from `step` on, which is a free step. The change is durable before any lease of it."""
        assert self._identity.job is not None
        live = LiveChange(step, self._phases.next_revision, change, reason)
        segments = self._phases.changed(live, self._identity.job)
        self._phases.note_change(live)
        out: list[Output] = [SegmentFact(step, live.revision, change, reason, tuple(segments))]
        if not segments:
            return out
        self._phases.replan(segments)
        self._closing = None
        closing = self._limit_phase()
        if closing is not None:
            assert self.stop_reason is not None
            out.append(StopFact(self.stop_reason, closing, closing.step))
        return [*out, *self._plans(), StepsDropped(step), WorkFreed()]

    # ------------------------------------------------------------ the stop

    def stop(self, sender: NodeId, message: Stop) -> list[Output]:
        """Stop the job after a step, or at once; a worker or a user asks for it.

        A slot whose `optimizer.step()` was called counts. So "at once" is before the first step that has a slot that
        nobody has sealed: perhaps nobody computes it any more. A worker that is behind the job stops nothing: nobody
        stopped the job at that point when the job was there.
        """
        if self._identity.failure is not None:
            return []
        if message.passed:
            text = _PASSED.format(worker=self._members.name(sender), reason=message.reason)
            return [WarningFound("passed stop", text), Send(sender, Ok(message.req))]
        end = message.step + 1
        if message.at_once:
            # In lock-step the job does not end below the version that the caller computes on (rule 23).
            in_step = self._phases.open is not None and self._phases.schedule.window(self._log.watermark.low) == 0
            seen = message.step if in_step else 0
            end = max(seen, _first_unsealed(self._log, self._phases, self._leases))
        return self._stop(message.reason, end, sooner=message.at_once, reply=[Send(sender, Ok(message.req))])

    def _stop(self, reason: str, end: int, *, sooner: bool, reply: list[Output]) -> list[Output]:
        phase, low = self._phases.open, self._log.watermark.low
        self.stop_reason = self.stop_reason or reason
        if phase is None and self._log.version < 0:
            # The job has no version yet: it stops when it reaches the limit.
            self.limit = 0 if sooner else end
            return [StopFact(self.stop_reason, None, self.limit), *reply]
        if self.finished or phase is None:
            if self.finished:
                return [*reply, WorkFreed()]
            self.finished, self.limit = True, low
            return [StopFact(self.stop_reason, None, self.limit), *reply, WorkFreed()]
        if not sooner:
            end = self._after_begun_steps(end)
        limit = min(max(end, low), phase.end)
        self.limit = limit if self.limit is None else min(limit, self.limit)
        closing = self._limit_phase()
        fact = StopFact(self.stop_reason, closing, self.limit)
        return [fact, *reply, StepsDropped(phase.end), *self._end_phase_if_done(), WorkFreed()]

    def _after_begun_steps(self, end: int) -> int:
        """`end`, or a later step: with a window, commits are not in step order, and leased slots are still computed."""
        if self._phases.open is None or self._phases.schedule.window(self._log.watermark.low) == 0:
            return end
        return max(end, _highest_step(self._leases) + 1, *(step + 1 for step in self._log.watermark.above))

    def stop_by(self, decisions: Sequence[Decision]) -> list[Output]:
        """Stop the job as policies decide, unless it already stops at that step or sooner."""
        low = self._log.watermark.low
        decision = lowest_stop(decisions, low)
        if decision is None or self.is_over:
            return []
        reason, end = decision
        if self.stop_reason is not None:
            if self.limit is None or self.limit <= self._after_begun_steps(max(end, low)):
                return []
            self.stop_reason = reason
        return self._stop(reason, end, sooner=False, reply=[])

    def _limit_phase(self) -> Segment | None:
        """End the open phase at the limit; returns the closing segment, None if the phase ends before the limit."""
        phase = self._phases.open
        if phase is None:
            return None
        began = PhaseBegan(phase.spec.number, phase.start, phase.end)
        decision = lowest_stop(ask(self._policies, began), max(phase.start, self._log.watermark.low))
        reason, limit = self.stop_reason, self.limit
        if decision is not None and (limit is None or decision[1] < limit):
            reason, limit = decision
        if limit is None or phase.end <= limit:
            return None
        self.stop_reason, self.limit = reason, limit
        self._closing = self._phases.end_at(limit)
        return self._closing


def _is_at_limit(limit: int | None, log: CommitLog) -> bool:
    """Whether the job has reached the step at which it stops."""
    return limit is None or log.watermark.low >= limit


def _highest_step(leases: LeaseBook) -> int:
    """The highest step of which a slot is leased or waits to be leased again; -1 for none."""
    leased = max((lease.slot.step for lease in leases.live.all()), default=-1)
    return max(leased, leases.requeued.highest_step)


def _first_unsealed(log: CommitLog, phases: PhaseBook, leases: LeaseBook) -> int:
    """The first uncommitted step that has a slot that nobody has sealed; the end of the phase if there is none."""
    step = log.watermark.low
    end = step if phases.open is None else phases.open.end
    while step < end:
        if not log.watermark.has(step) and not leases.live.are_sealed(step, phases.schedule.num_slots(step)):
            break
        step += 1
    return step
