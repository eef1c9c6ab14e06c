"""Leasing: a worker reports what it computed and gets the next slot. Rules 4 and 8.

A worker for which there is no slot waits. Workers that wait are offered free slots in the order in which they asked.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.early_turns import EarlyTurns, in_order
from paceline.core.coordinator.events import (
    Event,
    JobFailed,
    Output,
    PlacementDecided,
    SlotEvaluated,
    SlotReported,
    SlotSealed,
    SlotsSummed,
    StepCommitted,
    StepsDropped,
    TurnReported,
    WorkerRewound,
    WorkersCutOff,
    WorkersGone,
)
from paceline.core.coordinator.offers import Offers
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.speculation import Speculation
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.coordinator.validation import Validation
from paceline.core.effects import History, Send
from paceline.errors import MismatchError
from paceline.messages import GiveBack, Ok, Position, Revoke, Sealed, Summed, Turn
from paceline.types import INIT_STEP, NodeId, SlotId

_ASKED_ONE_BY_ONE = 4  # after so many workers that are held back, ask whether all others are


class Leasing:
    """Answers turns, at once or when a slot becomes free. Owns the leases, and the queues of workers that wait.

    `early` are the workers that compute a slot and ask for the lease of their next turn.

    `wasted_slots` counts sealed slots that were not used: another attempt counted, or the lease had become void.
    """

    def __init__(self, tables: Tables, segments: Segments, validation: Validation, wasted_slots: int = 0) -> None:
        self.wasted_slots = wasted_slots
        self._attendance = tables.attendance
        self._clock = tables.clock
        self._gate = tables.gate
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._placed = tables.placed
        self._rounds = tables.rounds
        self._speeds = tables.speeds
        self._segments = segments
        self._validation = validation
        self._late = Speculation(tables)
        self._offers = Offers(tables, segments, validation, self._late)
        self.early = EarlyTurns(tables, self._offers)
        self._waiting: OrderedDict[NodeId, Turn] = OrderedDict()
        self._evaluating: dict[NodeId, Turn] = {}
        placed, abandon = tables.placed, tables.leases.abandon_open
        # In a group a worker gets a lease that it does not list again instead: its step may be closed.
        may_group = tables.identity.spec.collective
        self._abandon_unknown = (
            (lambda sender, held: not placed.grouped and abandon(sender, held)) if may_group else abandon
        )
        self._suspects: deque[tuple[float, SlotId]] = deque()

    def restore(self, history: History) -> list[Output]:
        """Begin without leases; workers report the leases that they hold."""
        return self.reset(None)

    def reset(self, position: Position | None) -> list[Output]:
        """End all leases. Workers that wait keep waiting, and worker speeds stay known."""
        self._suspects.clear()
        initialised = self._log.version >= 0
        self._leases.reset(self._phases.schedule, self._log.watermark.low, initialised=initialised)
        return []

    @property
    def num_suspects(self) -> int:
        """The number of sealed slots whose holder is gone and whose pushes may still arrive."""
        return len(self._suspects)

    # ------------------------------------------------------------ turns

    def turn(self, sender: NodeId, turn: Turn) -> list[Output]:
        """Take the reports of a worker, then answer its turn.

        Raises:
            MismatchError: the worker asks for the result of a validation that no worker declared.
        """
        if turn.evaluation >= 0 and turn.evaluation >= len(self._rounds.validators):
            raise MismatchError(
                f"{self._members.name(sender)} waits for a validation that the job does not know: every worker must "
                "call job.validate and job.evaluate in the same order"
            )
        self._waiting.pop(sender, None)
        if self._evaluating:
            self._evaluating.pop(sender, None)
        self.early.pop(sender)
        phase = turn.phase
        if turn.declared:
            self._validation.declared(sender, turn.declared)
        if phase >= len(self._phases.phases) and not self._segments.finished:
            return [WorkerRewound(sender)]  # its phase began in an earlier incarnation
        if phase >= 0:
            self._attendance.ask(sender, phase)
        out: list[Output] = []
        if turn.incarnation == self._incarnation.number:
            if turn.sealed is not None and self._take_seal(sender, turn.sealed):
                out.append(SlotSealed(turn.sealed, sender))
            if turn.evaluated is not None:
                out.append(SlotEvaluated(turn.evaluated))
        if not out:
            return self._answer(sender, turn)
        out.append(TurnReported(sender, turn))
        return out

    def _take_seal(self, worker: NodeId, report: Sealed) -> bool:
        """Seal the lease that a worker reports; False if the lease has ended."""
        now, trains = self._clock.now, report.step != INIT_STEP
        if trains:
            self._speeds.note(worker, report.seconds, now)
        lease = self._leases.seal(report.fence, worker)
        if lease is None:
            # The step was committed with another attempt, or the lease is void. A commit of the same attempt, which a
            # server has reported before, wastes nothing.
            last = self._log.last
            self.wasted_slots += last is None or report.fence not in last.fences
            return False
        if trains:
            self._speeds.note_held(worker, now - self._late.readable_since(lease))
        return True

    def turn_reported(self, event: TurnReported) -> list[Output]:
        """Answer the worker with its next task if there is one; otherwise the worker waits."""
        return self._answer(event.worker, event.turn)

    def _answer(self, sender: NodeId, turn: Turn) -> list[Output]:
        freed = False
        if turn.abandoned is not None:
            freed = self._leases.abandon(turn.abandoned) is not None
            freed |= self._validation.abandon(turn.abandoned)
        # A worker that asks lists the leases that it has: one that it did not receive is freed for other workers. In a
        # group it gets that lease again, since its step may be closed.
        freed |= self._abandon_unknown(sender, turn.held)
        if sender in self._rounds.by_worker:
            freed |= self._validation.revoke(sender)
        out: list[Output] = self.offer() if freed else []
        if self._identity.failure is not None or self._members.members[sender].left:
            return out
        if turn.held:
            out += self.early.answer(sender, turn, self._waiting)
            requeued = self._leases.requeued.slots
            # If a lower slot waits, this worker may only wait for it: `offer` then recalls a lease.
            return out + self.offer() if requeued and sender in self.early else out
        reply = self._offers.offer(sender, turn, self._waiting)
        if reply is not None:
            out.append(Send(sender, reply))
        elif turn.evaluation >= 0:
            self._evaluating[sender] = turn
        else:
            if not self._waiting:
                self._late.waiting_again({})
            self._waiting[sender] = turn
            self._late.waits(sender, turn.phase)
        return out

    def slot_reported(self, event: SlotReported) -> list[Output]:
        """Seal the lease of a slot that a server reports; the attempt counts even if its worker is gone (rule 22)."""
        lease = self._leases.live.find(event.report.fence)
        worker = "" if lease is None else lease.worker
        if lease is not None:
            self._leases.seal(lease.fence, worker)
            self._speeds.note_held(worker, self._clock.now - self._late.readable_since(lease))
        return [SlotSealed(event.report, worker)]

    def give_back(self, sender: NodeId, message: GiveBack) -> list[Output]:
        """Take back a lease whose attempt will never count; its slot is leased again."""
        out: list[Output] = [Send(sender, Ok(message.req))]
        if self._leases.abandon(message.fence) is not None:
            out += self.offer()
        return out

    def summed(self, sender: NodeId, message: Summed) -> list[Output]:
        """Note that a server has summed more slots of a step, and offer slots that are now within `hold` (rule 4)."""
        if not self._placed.is_current(message.incarnation, message.epoch):
            return []
        return self._note_summed(sender, message.step, message.count)

    def slots_summed(self, event: SlotsSummed) -> list[Output]:
        """Note that a server has summed all slots of a step for which it is ready."""
        return self._note_summed(event.server, event.step, event.count)

    def _note_summed(self, server: NodeId, step: int, count: int) -> list[Output]:
        moved = self._leases.summed(server, step, count, len(self._placed.voters))
        return self.offer() if moved else []

    # ------------------------------------------------------------ offers to workers that wait

    def offer_freed(self, event: Event) -> list[Output]:
        """Offer free slots after an event that may have freed some."""
        return self.offer()

    def offer(self) -> list[Output]:
        """Offer free slots to the workers that wait, in the order in which they asked."""
        out: list[Output] = []
        for node, turn in list(self._evaluating.items()) if self._evaluating else ():
            reply = self._offers.offer(node, turn, self._waiting)
            if reply is not None:
                del self._evaluating[node]
                out.append(Send(node, reply))
        asked = 0
        for node, turn in in_order(self._waiting) if self._waiting else ():
            # All workers in this queue are in the open phase: if the first gets nothing, the others get nothing
            # either, unless the first was held back, does not know a validator, or slots are reserved for others.
            reply = self._offers.offer(node, turn, self._waiting)
            if reply is not None:
                del self._waiting[node]
                out.append(Send(node, reply))
            elif not self._offers.held_back and not self._offers.differ():
                return out
            else:
                asked += 1
                # In `asp` each commit comes here: one question decides about thousands that are held back.
                if asked == _ASKED_ONE_BY_ONE and self._offers.all_held_back(self._waiting):
                    break
        else:
            if asked > _ASKED_ONE_BY_ONE:
                self._late.waiting_again(self._waiting)
        if self.early:
            out += self.early.offer(self._waiting)
        if not self._leases.requeued.slots or any(map(self._offers.may_lease, self._waiting)):
            return out
        if self._identity.failure is None:
            lease = self._leases.recall(self._log.watermark.low, self._log.version >= 0)
            if lease is not None:
                out.append(self._revoke(lease))
        return out

    def _revoke(self, lease: Lease) -> Send:
        return Send(lease.worker, Revoke(self._identity.generation, lease.fence))

    # ------------------------------------------------------------ time passes

    def requeue_suspects(self) -> list[Output]:
        """Lease sealed slots again whose holder is gone and whose step was not committed in time."""
        while self._suspects and self._suspects[0][0] <= self._clock.now:
            _, slot = self._suspects.popleft()
            self._leases.requeue(slot)
        self._speeds.refresh()
        return []

    def tick(self) -> list[Output]:
        """Offer free slots, then lease late slots a second time."""
        out = self.offer() + self._speculate()
        own = self._offers.own
        idle = None if own is None else own.recall()
        return out if idle is None else [*out, self._revoke(idle)]

    def _speculate(self) -> list[Output]:
        """Lease late slots a second time, and release late reservations.

        A late slot goes to a worker that waits, or to one whose lease cannot be computed before this step is committed.
        """
        step = self._log.watermark.low
        blocked = self._log.version < 0 or self._placed.placement is None or self._incarnation.awaited
        if blocked or self._segments.is_over:
            return []
        late_workers = self._late.late_reservations()
        for worker in late_workers:
            self._leases.release(worker)
        out = self.offer() if late_workers else []
        for late in self._late.find_late():
            offered: list[Output] = []
            if self._late.is_new(late):
                self._late.mark(late)
                offered = self.offer()
                out += offered
            # Until a worker has taken the slot: a worker that still computes may have only its early lease soon.
            if not offered and self._late.is_late(late.fence):
                idle = self._leases.take_back(step, step, initialised=True)
                if idle is not None:  # the worker asks again, and gets the late slot
                    out.append(self._revoke(idle))
        return out

    # ------------------------------------------------------------ what ends leases

    def committed(self, event: StepCommitted) -> list[Output]:
        """End the leases of the step; count the sealed attempts that the commit does not name as wasted."""
        won = set(event.commit.fences)
        self.wasted_slots += len([1 for lease in self._leases.committed(event.commit.step) if lease.fence not in won])
        return []

    def steps_dropped(self, event: StepsDropped) -> list[Output]:
        """Revoke the leases of steps that will not be computed."""
        return [self._revoke(lease) for lease in self._leases.beyond(event.end_step)]

    def void(self, event: PlacementDecided) -> list[Output]:
        """Make the leases of the old placement void (rule 5); their slots are leased again."""
        self._suspects.clear()
        initialised = self._log.version >= 0
        held, sealed = self._leases.restart(self._log.watermark.low, initialised=initialised, now=self._clock.now)
        self.wasted_slots += sealed
        # A worker that waits for its state asks again. Servers refuse the pushes of a worker that computes.
        return [self._revoke(lease) for lease in held]

    def cut_off(self, event: WorkersCutOff) -> list[Output]:
        """Release the reservations of workers that cannot reach a primary."""
        for node in event.workers:
            self._leases.release(node)
        return []

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Lease the slots of gone workers again; a slot that has lost too many holders fails the job (rule 4)."""
        out: list[Output] = []
        for worker in event.workers:
            self._waiting.pop(worker, None)
            self._evaluating.pop(worker, None)
            self.early.pop(worker)
            self._speeds.forget(worker)
            revoked = self._leases.revoke(worker, lost=event.lost, host=event.host)
            for slot in revoked.sealed:
                self._doubt(slot)
            if revoked.poisoned is not None:
                assert self._identity.job is not None
                error = revoked.poisoned.error(self._leases.schedule, self._identity.job.seed)
                out.append(JobFailed("lost", str(error)))
        return out

    def _doubt(self, slot: SlotId) -> None:
        """Decide when a sealed slot whose holder is gone is leased again: its pushes may still arrive.

        If attempts are interchangeable, wait `grace_s` for the pushes. Otherwise lease the slot again at once, unless
        an attempt of it is already chosen.
        """
        if not self._segments.needs_one_attempt(slot.step):
            self._suspects.append((self._clock.now + self._identity.spec.grace_s, slot))
        elif self._gate.chosen(slot.step, slot.slot) is None:
            self._leases.requeue(slot)
