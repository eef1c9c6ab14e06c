"""The desk: a worker reports what it did and is given the next thing to do."""

from __future__ import annotations

from collections import OrderedDict

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.leases import Lease
from paceline.core.coordinator.phases import Phase
from paceline.core.coordinator.recovery import Recovery
from paceline.core.effects import Effect, Send
from paceline.errors import MismatchError
from paceline.messages import (
    EvalGrant,
    EvalOver,
    GiveBack,
    Grant,
    Message,
    Ok,
    PhaseOver,
    Revoke,
    Sealed,
    Turn,
)
from paceline.types import (
    INIT_STEP,
    Fence,
    NodeId,
)

_UNKNOWN_S = 60.0  # in which a worker fetches what was left to it, where it is not known how fast anybody is


class Desk:
    """Answers turns, at once or when something becomes free."""

    def __init__(self, books: Books, commits: Commits, recovery: Recovery) -> None:
        self._job = books
        self._commits = commits
        self._recovery = recovery
        self._waiting: OrderedDict[NodeId, Turn] = OrderedDict()
        self._evaluating: dict[NodeId, Turn] = {}
        self._late: dict[Fence, Lease] = {}
        self._sheltered = False
        self._read_since = (-1, 0.0)
        books.serve = self.serve

    def turn(self, sender: NodeId, turn: Turn) -> list[Effect]:
        """Take the report, then give what there is; else the worker waits."""
        if turn.evaluation >= len(self._job.evaluations.validators):
            raise MismatchError(f"validation {turn.evaluation} was never declared")
        self._waiting.pop(sender, None)
        self._evaluating.pop(sender, None)
        self._job.declared[sender] = max(self._job.declared.get(sender, 0), turn.declared)
        if turn.phase >= len(self._job.phases.phases) and self._job.state != "finished":
            return self._recovery.send_back(sender)  # its phase began in a history that is no more
        if turn.phase >= 0:
            self._job.attendance.enter(sender, turn.phase)
            self._job.progress[sender] = max(self._job.progress.get(sender, -1), 2 * turn.phase)
        effects: list[Effect] = []
        if turn.incarnation == self._job.incarnation:
            if turn.sealed is not None:
                effects += self._sealed(sender, turn.sealed)
            if turn.evaluated is not None:
                effects += self._commits.evaluated(turn.evaluated)
        freed = False
        if turn.abandoned is not None:
            freed = self._job.leases.abandon(turn.abandoned) is not None
            freed |= self._job.evaluations.abandon(turn.abandoned) is not None
        # A worker that asks has nothing in hand: a lease of which it never heard goes to somebody else.
        freed |= self._job.leases.abandon_open(sender)
        freed |= self._job.evaluations.revoke(sender)
        if freed:
            effects += self.serve()
        if self._job.failure is not None or self._job.members.members[sender].left:
            return effects
        reply = self._offer(sender, turn)
        if reply is not None:
            effects.append(Send(sender, reply))
        elif turn.evaluation >= 0:
            self._evaluating[sender] = turn
        else:
            self._waiting[sender] = turn
        return effects

    def _sealed(self, sender: NodeId, report: Sealed) -> list[Effect]:
        if report.step != INIT_STEP:
            self._job.pace.note(sender, report.seconds, self._job.now)
        if self._job.leases.seal(report.fence, sender) is None:
            self._job.totals.wasted_slots += 1  # somebody else's attempt was sooner, or the lease was lost
            return []
        self._job.gate.sealed(report)
        return self._commits.progress(report.step, report.slot, report.fence)

    def give_back(self, sender: NodeId, message: GiveBack) -> list[Effect]:
        """An attempt that will never count: its slot is leased again."""
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        if self._job.leases.abandon(message.fence) is not None:
            effects += self.serve()
        return effects

    def serve(self) -> list[Effect]:
        """Something became available: offer it to those who wait, in the order in which they asked."""
        effects: list[Effect] = []
        for node, turn in list(self._evaluating.items()):
            reply = self._offer(node, turn)
            if reply is not None:
                del self._evaluating[node]
                effects.append(Send(node, reply))
        for node, turn in list(self._waiting.items()):
            # Workers in this queue are all in the open phase: where the first gets nothing, nobody does, unless it
            # was only left out because others are faster, does not know what there is to validate, or because what
            # there is was left to others.
            reply = self._offer(node, turn)
            if reply is not None:
                del self._waiting[node]
                effects.append(Send(node, reply))
            elif not self._sheltered and not self._differ():
                return effects
        if self._waiting.keys() - self._job.cut_off:
            return effects
        if self._job.failure is None:
            lease = self._job.leases.recall(self._job.watermark.low, self._job.version >= 0)
            if lease is not None:
                effects.append(Send(lease.worker, Revoke(self._job.generation, lease.fence)))
        return effects

    def _differ(self) -> bool:
        """Whether one of those who wait may get what another does not."""
        return bool(self._job.leases.reserved) or self._job.evaluations.waiting(len(self._job.evaluations.validators))

    def speculate(self) -> list[Effect]:
        """Late slots are leased again, to workers that have nothing to do or that only wait for one of them.

        So are slots that were left to workers who are late to fetch them.
        """
        job = self._job
        step = job.watermark.low
        if job.version < 0 or job.placement is None or job.awaited or job.is_over():
            return []
        effects = self._release()
        for late in sorted(job.leases.open_leases(), key=lambda lease: lease.slot):
            if late.slot.step != step or not job.pace.is_late(late.worker, job.now - self._since(late)):
                continue
            if job.leases.attempts(late.slot) > 1 or late.fence in self._late:
                continue
            self._late[late.fence] = late
            before = len(effects)
            effects += self.serve()
            if len(effects) == before and late.fence in self._late:
                blocked = job.leases.take_back(step, step, initialised=True)
                if blocked is not None:  # it asks again, and gets the late slot
                    effects.append(Send(blocked.worker, Revoke(job.generation, blocked.fence)))
        return effects

    def _release(self) -> list[Effect]:
        """Who does not come for the slot that was left to it in the usual time does not get it for certain."""
        job = self._job
        late = [r.worker for r in job.leases.reserved.all() if self._is_late(r.worker, job.now - r.at)]
        for worker in late:
            job.leases.release(worker)
        return self.serve() if late else []

    def _is_late(self, worker: NodeId, elapsed_s: float) -> bool:
        if self._job.pace.typical is None:  # nobody knows yet how long a slot takes
            return elapsed_s > _UNKNOWN_S
        return self._job.pace.is_late(worker, elapsed_s)

    def _second(self, node: NodeId) -> Lease | None:
        """A late slot for `node` to try as well."""
        leases = self._job.leases
        for fence, late in list(self._late.items()):
            if leases.is_open(fence) and leases.attempts(late.slot) == 1:
                if late.worker != node:
                    del self._late[fence]
                    return leases.again(late, node, self._job.now)
            else:
                del self._late[fence]
        return None

    def _since(self, lease: Lease) -> float:
        """Since when `lease` can be worked on: leases are granted before the state to compute them on is there."""
        version, at = self._read_since
        if version != self._job.version:
            self._read_since = (self._job.version, self._job.now)
            at = self._job.now
        return max(lease.at, at)

    def _shelters(self, node: NodeId, end_step: int) -> bool:
        """Whether `node` is so slow that the others finish the rest without it before it ended one slot."""
        job = self._job
        if not job.pace.is_slow(node, job.now) or job.leases.has_requeued or job.leases.reserved.has(node):
            return False
        slots = job.leases.unleased(end_step, in_step=job.schedule.window(job.watermark.low) == 0)
        workers = len(job.members.members)
        if not 0 < slots <= 4 * workers:
            return False
        busy = {ls.worker: job.now - self._since(ls) for ls in job.leases.open_leases()}
        others = {n: 0.0 for n in self._waiting if n != node} | {n: s for n, s in busy.items() if n != node}
        return job.pace.others_are_sooner(node, slots, others.items())

    def _offer(self, node: NodeId, turn: Turn) -> Message | None:
        """What `node` gets now: a validation slot first, then a training slot, or the end of its phase."""
        self._sheltered = node in self._job.cut_off  # others who wait may get what it does not
        if self._sheltered:
            return None
        if self._job.failure is not None or self._job.placement is None or self._is_quiet():
            return None
        lead = self._job.members.lead() == node
        if self._job.version < 0:
            return self._offer_training(node, turn, lead)
        if turn.evaluation >= 0:
            known = self._commits.request_evaluation(turn.evaluation)
            if known is not None:
                return EvalOver(turn.req, self._job.generation, turn.evaluation, *known)
        declared = self._job.declared.get(node, 0)
        if self._job.evaluations.waiting(declared):
            fence = self._job.leases.fence()
            granted = self._job.evaluations.grant(node, fence, declared)
            assert granted is not None
            round_, slot = granted
            return EvalGrant(
                turn.req,
                self._job.generation,
                self._job.incarnation,
                self._job.placement.epoch,
                round_.number,
                round_.validator.number,
                slot,
                fence,
                round_.version,
                lead,
            )
        if turn.evaluation >= 0:
            return None
        return self._offer_training(node, turn, lead)

    def _is_quiet(self) -> bool:
        """Whether a new coordinator still listens for what servers and workers hold."""
        job = self._job
        if job.awaited:
            return True
        return job.now < job.quiet_until and job.members.num_workers < job.wanted_workers

    def _offer_training(self, node: NodeId, turn: Turn, lead: bool) -> Message | None:
        assert self._job.placement is not None
        phases = self._job.phases.phases
        if self._job.version >= 0:
            number = min(turn.phase, len(phases) - 1) if self._job.state == "finished" else turn.phase
            phase = phases[number] if 0 <= number < len(phases) else None
            if (phase is None and self._job.state == "finished") or (phase is not None and self._phase_over(phase)):
                return self._over_message(node, turn, phase, lead)
        open_ = self._job.phases.open
        mine = open_ is not None and open_.spec.number == turn.phase and turn.evaluation < 0
        end = open_.end if open_ is not None and mine else 0  # step 0 is beyond 0, the initial weights are not
        # What it has computed comes before what others are late with.
        lease = self._second(node) if mine and self._late and not self._job.leases.reserved.has(node) else None
        if lease is None and mine and self._job.version >= 0 and self._shelters(node, end):
            self._sheltered = True
            return None
        if lease is None:
            lease = self._job.leases.grant(node, self._job.watermark.low, self._job.version >= 0, end, self._job.now)
        if lease is None:
            return None
        if self._job.state == "waiting":
            self._job.state = "running"
        return self._grant(turn, lease, lead=lead)

    def _grant(self, turn: Turn, lease: Lease, *, lead: bool) -> Grant:
        assert self._job.placement is not None
        step, slot = lease.slot
        return Grant(
            turn.req,
            self._job.generation,
            self._job.incarnation,
            self._job.placement.epoch,
            step,
            slot,
            self._job.schedule.num_slots(step),
            lease.fence,
            None if step == INIT_STEP else self._job.schedule.segment(step),
            lead,
        )

    def _over_message(self, node: NodeId, turn: Turn, phase: Phase | None, lead: bool) -> PhaseOver:
        assert self._job.placement is not None
        version = self._job.version if phase is None or phase.end_version is None else phase.end_version
        if version != self._job.version and version not in self._job.pins:
            version = -1  # long gone: a late joiner reads the state it needs with its first lease
        self._job.progress[node] = max(self._job.progress.get(node, -1), 2 * turn.phase + 1)
        metrics = None if phase is None else phase.metrics
        if metrics is None:
            metrics = self._job.evaluations.metrics()
        if phase is not None:
            phase.metrics = metrics  # others may leave it when there are newer ones
        return PhaseOver(
            turn.req,
            self._job.generation,
            self._job.incarnation,
            self._job.placement.epoch,
            turn.phase,
            version,
            self._job.watermark.low,
            self._job.state == "finished",
            lead,
            metrics,
        )

    def _phase_over(self, phase: Phase) -> bool:
        """Whether workers may leave a phase: all its steps are committed, and its last version is validated."""
        end = phase.end_version
        return end is not None and not any(
            r.validator.every and r.version <= end for r in self._job.evaluations.rounds.values()
        )

    def forget(self, worker: NodeId) -> None:
        """Nobody waits at the desk for `worker` any more."""
        self._waiting.pop(worker, None)
        self._evaluating.pop(worker, None)
