"""The desk: a worker reports what it did and is given the next thing to do."""

from __future__ import annotations

from collections import OrderedDict

from paceline.core.books import Books
from paceline.core.commits import Commits
from paceline.core.effects import Effect, Send
from paceline.core.phases import Phase
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
    Turn,
)
from paceline.types import (
    INIT_STEP,
    NodeId,
)


class Desk:
    """Answers turns, at once or when something becomes free."""

    def __init__(self, books: Books, commits: Commits) -> None:
        self._job = books
        self._commits = commits
        self._waiting: OrderedDict[NodeId, Turn] = OrderedDict()
        self._evaluating: dict[NodeId, Turn] = {}
        books.serve = self.serve

    def turn(self, sender: NodeId, turn: Turn) -> list[Effect]:
        """Take the report, then give what there is; else the worker waits."""
        if turn.evaluation >= len(self._job.evaluations.validators):
            raise MismatchError(f"validation {turn.evaluation} was never declared")
        self._waiting.pop(sender, None)
        self._evaluating.pop(sender, None)
        if turn.phase >= 0:
            self._job.attendance.enter(sender, turn.phase)
        effects: list[Effect] = []
        if turn.incarnation == self._job.incarnation:
            if turn.sealed is not None and self._job.leases.seal(turn.sealed.fence, sender) is not None:
                self._job.gate.sealed(turn.sealed)
                effects += self._commits.progress(turn.sealed.step, turn.sealed.slot, turn.sealed.fence)
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
        while self._waiting:
            # Workers in this queue are all in the open phase: where the first gets nothing, nobody does.
            node, turn = next(iter(self._waiting.items()))
            reply = self._offer(node, turn)
            if reply is None:
                return effects
            del self._waiting[node]
            effects.append(Send(node, reply))
        if self._job.failure is None:
            lease = self._job.leases.recall(self._job.watermark.low, self._job.version >= 0)
            if lease is not None:
                effects.append(Send(lease.worker, Revoke(self._job.generation, lease.fence)))
        return effects

    def _offer(self, node: NodeId, turn: Turn) -> Message | None:
        """What `node` gets now: a validation slot first, then a training slot, or the end of its phase."""
        if self._job.failure is not None or self._job.placement is None:
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

    def _offer_training(self, node: NodeId, turn: Turn, lead: bool) -> Message | None:
        assert self._job.placement is not None
        phases = self._job.phases.phases
        if self._job.version >= 0:
            number = min(turn.phase, len(phases) - 1) if self._job.state == "finished" else turn.phase
            phase = phases[number] if 0 <= number < len(phases) else None
            if (phase is None and self._job.state == "finished") or (phase is not None and self._phase_over(phase)):
                return self._over_message(turn, phase, lead)
        open_ = self._job.phases.open
        mine = open_ is not None and open_.spec.number == turn.phase and turn.evaluation < 0
        end = open_.end if open_ is not None and mine else 0  # step 0 is beyond 0, the initial weights are not
        lease = self._job.leases.grant(node, self._job.watermark.low, self._job.version >= 0, end, self._job.now)
        if lease is None:
            return None
        if self._job.state == "waiting":
            self._job.state = "running"
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

    def _over_message(self, turn: Turn, phase: Phase | None, lead: bool) -> PhaseOver:
        assert self._job.placement is not None
        version = self._job.version if phase is None or phase.end_version is None else phase.end_version
        if version != self._job.version and version not in self._job.pins:
            version = -1  # long gone: a late joiner reads the state it needs with its first lease
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
            self._job.evaluations.metrics(),
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
