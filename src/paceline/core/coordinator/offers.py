"""The answer to a worker that asks for work: a validation slot, a training slot, the end of its phase, or none yet."""

from __future__ import annotations

from collections.abc import Collection

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.own_slots import OwnSlots
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.speculation import Speculation
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.coordinator.tables.phases import Phase
from paceline.core.coordinator.validation import Validation
from paceline.messages import EvalGrant, EvalOver, Grant, Message, PhaseOver, Turn
from paceline.types import INIT_STEP, NodeId


class Offers:
    """Decides the answer to one worker that asks for work. A part of `Leasing`.

    `held_back`: the last call of `offer` gave its worker nothing, for a reason of that worker alone: the next one may
    still get a slot.
    """

    def __init__(self, tables: Tables, segments: Segments, validation: Validation, late: Speculation) -> None:
        self.held_back = False
        self._attendance = tables.attendance
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._pins = tables.pins
        self._placed = tables.placed
        self._reach = tables.reach
        self._reducers = tables.reducers
        self._rounds = tables.rounds
        self._speeds = tables.speeds
        self._segments = segments
        self._validation = validation
        self._late = late
        self.own = self._own = OwnSlots(tables) if tables.identity.spec.collective else None

    def differ(self) -> bool:
        """Whether, of two workers that wait, one may get a slot that the other may not."""
        return bool(self._leases.reserved) or self._rounds.waiting(len(self._rounds.validators))

    def all_held_back(self, waiting: Collection[NodeId]) -> bool:
        """Whether all workers that wait are held back because they are slow; False also if that is not certain."""
        open_ = self._phases.open
        if open_ is None or self._rounds.running or self._reach.cut_off or self._members.draining_hosts:
            return False
        return self._late.holds_back_all(open_.end, open_.spec.number, waiting)

    def may_lease(self, node: NodeId) -> bool:
        """Whether `node` may get a lease: in a group, its member must be one of the group."""
        return (self._own is None or self._own.is_in_group(node)) and self._may_read(node)

    def _may_read(self, node: NodeId) -> bool:
        """Whether `node` may get work at all: it reaches all primaries, and its host need not become empty.

        A worker of a draining host may still seal again what it computed before a change of placement.
        """
        if node in self._reach.cut_off:
            return False
        members = self._members
        return not members.draining_hosts or not members.is_draining(node) or self._leases.reserved.has(node)

    def offer(self, node: NodeId, turn: Turn, waiting: Collection[NodeId]) -> Message | None:
        """The answer to `turn`: a validation slot first, then a training slot or the end of the phase; None: wait."""
        self.held_back = node in self._reach.cut_off
        if self.held_back or self._is_blocked():
            return None
        members, rounds, number = self._members, self._rounds, turn.evaluation
        waiting = [n for n in waiting if self.may_lease(n)] if members.draining_hosts else waiting
        lead = members.lead() == node
        if self._log.version < 0:
            return self._training(node, turn, lead, waiting)
        if number >= 0:
            self._validation.request(number)
            known = rounds.latest.get(number)
            if known is not None:
                return EvalOver(turn.req, self._identity.generation, number, *known, rounds.shown(number))
        if rounds.running and rounds.waiting(rounds.declared.get(node, 0)):
            # Outside of the group too: a version stays pinned until it is validated, and no member joins before.
            self.held_back = not self._may_read(node)
            return None if self.held_back else self._validation_grant(node, turn, lead)
        return None if number >= 0 else self._training(node, turn, lead, waiting)

    def offer_next(self, node: NodeId, turn: Turn, step: int, waiting: Collection[NodeId]) -> Message | None:
        """A lease of a later step for a worker that computes a slot of `step`; None: later, or when it has sealed.

        Only in lock-step with interchangeable attempts. Validation goes first: the worker gets its slots when it asks
        without a lease in hand.
        """
        self.held_back = not self.may_lease(node)
        if self.held_back or self._is_blocked():
            return None
        open_, rounds = self._phases.open, self._rounds
        if open_ is None or open_.spec.number != turn.phase or self._log.version < 0 or not self._reads_ahead(step):
            return None
        if self._own is not None and self._reducers.must_move:
            return None
        if rounds.running and rounds.waiting(rounds.declared.get(node, 0)):
            return None
        end = self._limit(open_.end) if rounds.running else open_.end
        if self._own is not None:
            decided, lease = self._own.offer(node, turn.held, end, step)
            if decided:
                self.held_back = lease is None  # another worker may still get its own slot
                return None if lease is None else self._grant(turn, lease, self._members.lead() == node)
        if self._late.holds_back(node, open_.end, waiting):
            self.held_back = True
            return None
        lease = self._leases.grant(node, self._log.watermark.low, True, end, self._clock.now, above=step)
        return None if lease is None else self._grant(turn, lease, self._members.lead() == node)

    def is_too_early(self, node: NodeId, step: int) -> bool:
        """Whether `offer_next` has nothing above `step`: in lock-step, one step above the lowest one is leased.

        Of a slow worker this says nothing: the time of its question counts.
        """
        if step <= self._log.watermark.low or self._leases.requeued.slots:
            return False
        return self._phases.schedule.window(step) == 0 and not self._speeds.is_slow(node, self._clock.now)

    def _reads_ahead(self, step: int) -> bool:
        """Whether workers may read the state of the step after `step` before its commit, and so need an early lease."""
        if self._own is None or not self._placed.grouped or step == INIT_STEP:
            return step != INIT_STEP and not self._segments.needs_one_attempt(step)
        return self._phases.schedule.window(step) == 0

    def _is_blocked(self) -> bool:
        """Whether no worker gets anything: the job has failed, blocks are not placed, or a new coordinator waits.

        A new coordinator waits for reports of servers and workers (rule 7).
        """
        if self._identity.failure is not None or self._placed.placement is None:
            return True
        return self._members.are_awaited(self._incarnation, self._clock.now)

    def _validation_grant(self, node: NodeId, turn: Turn, lead: bool) -> EvalGrant:
        fence = self._leases.fence()
        granted = self._validation.grant(node, fence)
        assert granted is not None
        round_, validator, slot, version = granted
        return EvalGrant(
            turn.req,
            self._identity.generation,
            self._incarnation.number,
            self._placed.epoch,
            round_,
            validator,
            slot,
            fence,
            version,
            lead,
        )

    def _training(self, node: NodeId, turn: Turn, lead: bool, waiting: Collection[NodeId]) -> Message | None:
        version, open_ = self._log.version, self._phases.open
        mine = open_ is not None and open_.spec.number == turn.phase and turn.evaluation < 0
        if version >= 0 and not mine:
            finished, phases = self._segments.finished, self._phases.phases
            number = min(turn.phase, len(phases) - 1) if finished else turn.phase
            phase = phases[number] if 0 <= number < len(phases) else None
            if finished if phase is None else self._is_over(phase):
                return self._phase_over(node, turn, phase, lead)
        if not self.may_lease(node):
            self.held_back = True
            return None
        end = open_.end if open_ is not None and mine else 0  # 0: no step may be leased, only the initial weights
        if self._own is not None and self._reducers.must_move:
            if version >= 0:
                self.held_back = True  # another worker may be in a phase that has ended
                return None
            end = 0
        lease: Lease | None = None
        if self._own is not None and mine:
            decided, lease = self._own.offer(node, turn.held, self._limit(end), None)
            if decided and lease is None:
                self.held_back = True  # another worker may still get its own slot
                return None
        if mine and self._late.has_late and lease is None and not self._leases.reserved.has(node):
            # A reserved slot is computed already, so it comes before the late slots of others.
            late = self._late.take(node)
            lease = None if late is None else self._leases.lease(late.slot, node, self._clock.now)
        if lease is None and mine and version >= 0 and self._late.holds_back(node, end, waiting):
            self.held_back = True
            return None
        if lease is None:
            end = self._limit(end) if self._rounds.running else end
            lease = self._leases.grant(node, self._log.watermark.low, version >= 0, end, self._clock.now)
        if lease is None:
            return None
        if not self._segments.begun:
            self._segments.start_running()
        return self._grant(turn, lease, lead)

    def _limit(self, end: int) -> int:
        """The first step that must not be leased: in lock-step a step waits for the results that it sees (rule 8)."""
        if end <= 0 or self._phases.schedule.window(self._log.watermark.low):
            return end
        barrier = self._rounds.barrier()
        return end if barrier is None else min(end, barrier)

    def _grant(self, turn: Turn, lease: Lease, lead: bool) -> Grant:
        (step, slot), fence, _, _ = lease
        schedule, open_, rounds = self._phases.schedule, self._phases.open, self._rounds
        return Grant(
            turn.req,
            self._identity.generation,
            self._incarnation.number,
            self._placed.epoch,
            step,
            slot,
            schedule.num_slots(step),
            fence,
            None if step == INIT_STEP else schedule.segment(step),
            lead,
            {} if not rounds.latest or open_ is None or step == INIT_STEP else rounds.seen_at(step, open_.start),
            self._reads_ahead(step) and self._leases.unleased(step + 1) < self._members.num_workers,
        )

    def _is_over(self, phase: Phase) -> bool:
        """Whether workers may leave a phase: its steps are committed, and no validation of its versions is running."""
        end = phase.end_version
        return end is not None and not any(
            r.validator.every and r.version <= end for r in self._rounds.running.values()
        )

    def _phase_over(self, node: NodeId, turn: Turn, phase: Phase | None, lead: bool) -> PhaseOver:
        current = self._log.version
        version = current if phase is None or phase.end_version is None else phase.end_version
        if version != current and version not in self._pins:
            version = -1  # the version is released: a worker that joined late reads its state with its first lease
        self._attendance.advance(node, 2 * turn.phase + 1)
        return PhaseOver(
            turn.req,
            self._identity.generation,
            self._incarnation.number,
            self._placed.epoch,
            turn.phase,
            version,
            self._log.watermark.low,
            self._segments.finished,
            lead,
            self._segments.fix_metrics(phase),
            None if phase is None else self._phases.last_segment(phase),
        )
