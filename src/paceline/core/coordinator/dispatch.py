"""The coordinator's decisions: membership, leases, the commit log, phases, validation.

Events in (`handle`, `tick`, `lost`), effects out, in the order in which the shell must carry them out: a `Write` is
durable before the `Send`s behind it leave. Rules 1 to 4, 6 to 8 and 11 of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.books import Books
from paceline.core.coordinator.checkpoints import Keeping
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.leasing import Desk
from paceline.core.coordinator.phasing import Phasing
from paceline.core.coordinator.placement import Placing
from paceline.core.coordinator.recovery import Recovery
from paceline.core.coordinator.requests import RequestBook
from paceline.core.coordinator.roster import Roster
from paceline.core.effects import ClaimFact, Effect, History, ScaleFact, Send
from paceline.errors import MismatchError
from paceline.messages import (
    Beat,
    BeginPhase,
    Bye,
    Chained,
    Checkpoint,
    Claim,
    ClaimDone,
    Copied,
    Declare,
    EvalGrant,
    Exited,
    Failed,
    GiveBack,
    Grant,
    Message,
    NotLoaded,
    Ok,
    PhaseOver,
    PlacementRequest,
    Prepare,
    Reachable,
    Ready,
    Receipt,
    Refused,
    Register,
    Saved,
    Scale,
    Stop,
    Summed,
    Turn,
    Unreachable,
)
from paceline.types import (
    NodeId,
)

_REPEATABLE = (
    GiveBack,
    PlacementRequest,
)  # several may be under way at once, and doing one twice changes nothing


class CoordinatorCore(Books):
    """State of the coordinator. Mutated only through `start`, `handle`, `tick`, `lost`, `finish` and `completed`."""

    def __init__(
        self,
        spec: ClusterSpec,
        generation: int,
        history: History | None = None,
        checkpoints: Sequence[Checkpoint] = (),
    ) -> None:
        """`history` is what earlier coordinators of the run wrote; `checkpoints` are those that are complete."""
        super().__init__(spec, generation)
        self._requests = RequestBook()
        self._keeping = Keeping(self)
        self._commits = Commits(self, self._keeping)
        self._recovery = Recovery(self, self._commits, self._keeping)
        self._desk = Desk(self, self._commits, self._recovery)
        self._phasing = Phasing(self, self._commits)
        self._placing = Placing(self, self._keeping)
        self._keeping.differs, self._commits.committed = self._placing.differ, self._placing.committed
        self._roster = Roster(self, self._commits, self._desk, self._recovery, self._requests, self._placing)
        self.checkpoints = sorted(checkpoints, key=lambda c: c.folder)
        if history is not None and history.facts:
            self._recovery.restore(history)
            self.last = self.log[-1] if self.log else None
        self._handlers: dict[type[Message], Callable[..., list[Effect]]] = {
            Prepare: self._roster.prepare,
            Declare: self._phasing.declare,
            BeginPhase: self._phasing.begin,
            Turn: self._desk.turn,
            GiveBack: self._desk.give_back,
            Claim: self.claims.claim,
            ClaimDone: self._claim_done,
            Bye: self._roster.bye,
            PlacementRequest: self._roster.where,
            Receipt: self._commits.receipt,
            Ready: self._commits.ready,
            Summed: self._commits.summed,
            Saved: self._keeping.saved,
            Copied: self._placing.copied,
            Chained: self._keeping.chained,
            Unreachable: self._placing.unreachable,
            Reachable: self._placing.reachable,
            NotLoaded: lambda sender, message: self._roster.not_loaded(message),
        }

    def start(self, now: float) -> list[Effect]:
        """Once, before the first event."""
        self.now = now
        if self.spec.resume is None or self.job is None:
            return []
        return self._recovery.resume(self.spec.resume)

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Effect]:
        """One message. A request is carried out once; when it is repeated, it gets the same answer."""
        self.now = now
        effects = self._handle(sender, message)
        self._requests.answered(effects)
        return effects

    def _handle(self, sender: NodeId, message: Message) -> list[Effect]:
        match message:
            case Register():
                return self._roster.register(sender, message)
            case Beat():
                return self._roster.beat(sender, message)
            case Exited():
                return [Send(sender, Ok(message.req)), *self._roster.exited(message)]
            case Failed():
                return [Send(sender, Ok(message.req)), *self._roster.failed(sender, message.kind, message.trace)]
            case Stop() if self.failure is None:  # people may ask for it too
                return self._phasing.stop(sender, message)
            case Scale():
                return self._scale(sender, message)
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        req: int | None = getattr(message, "req", None)
        if not self.members.seen(sender, self.now):
            return [] if req is None else [Send(sender, Refused(req, "unknown", "register first"))]
        if self.failure is not None:
            return [Send(sender, self.failure)]
        if req is not None and not isinstance(message, _REPEATABLE) and self._requests.seen(sender, message, req):
            again = self._requests.reply(sender, message, req)
            if again is None:
                return []
            if not self._is_void(again.message):
                return [again]
            # The lease in that answer is over: the worker that waits on it needs another one.
        try:
            return handler(sender, message)
        except MismatchError as error:
            return self._roster.refuse(sender, str(error))

    def _scale(self, sender: NodeId, message: Scale) -> list[Effect]:
        """Somebody wants another number of workers or servers."""
        if 0 < message.servers <= self.spec.replicas:
            needed = self.spec.replicas + 1
            return [Send(sender, Refused(message.req, "replicas", f"{needed} servers are needed for the replicas"))]
        self.wanted_workers = max(1, message.workers or self.wanted_workers)
        self.wanted_servers = message.servers or self.wanted_servers
        self._placing.look(0.0)
        fact = ScaleFact(self.wanted_workers, self.wanted_servers)
        return [self.fact(fact), Send(sender, Ok(message.req)), *self._roster.place()]

    def _claim_done(self, sender: NodeId, message: ClaimDone) -> list[Effect]:
        return [self.fact(ClaimFact(message.key)), *self.claims.done(sender, message)]

    def _is_void(self, reply: Message) -> bool:
        """Whether an answer that was given is a lease that no longer holds, or speaks of blocks that are no more."""
        if isinstance(reply, Grant | EvalGrant | PhaseOver) and not self.is_current(reply.incarnation, reply.epoch):
            return True
        match reply:
            case Grant(fence=fence):
                return fence not in self.leases
            case EvalGrant(fence=fence):
                return fence not in self.evaluations
        return False

    def tick(self, now: float) -> list[Effect]:
        """Time passes (the coordinator's running time, its inbox drained): who has been silent for too long?"""
        self.now = now
        effects: list[Effect] = []
        for member in self.members.silent(now):
            effects += self._roster.lose(
                member, f"silent for {now - member.seen:.1f} s; PACELINE_HEARTBEAT_TIMEOUT_S raises the limit"
            )
        while self.suspects and self.suspects[0][0] <= now:
            _, slot = self.suspects.popleft()
            self.leases.requeue(slot)
        self.pace.refresh()
        effects += self._commits.release_phase_pins()
        effects += self._placing.tick()
        effects += self._desk.serve() + self._desk.speculate()
        self._requests.answered(effects)
        return effects

    @property
    def cuts(self) -> list[tuple[NodeId, NodeId]]:
        """Pairs of which the first cannot reach the second, as far as that is known."""
        return sorted(self._placing.reach.cuts(self.now))

    @property
    def settled(self) -> bool:
        """Whether no checkpoint is under way."""
        return self._keeping.settled

    def finish(self, now: float) -> list[Effect]:
        """The job is over: its last version goes to a checkpoint, unless there is one of it."""
        self.now = now
        return self._keeping.finish(self.last)

    def completed(self, folder: str, problem: str, now: float) -> list[Effect]:
        """The checkpoint in `folder` is whole, or `problem` says why not."""
        self.now = now
        return self._keeping.completed(folder, problem)

    def lost(self, node: NodeId, reason: str, now: float) -> list[Effect]:
        """The transport lost the session with `node`."""
        self.now = now
        member = self.members.members.get(node)
        effects = [] if member is None else self._roster.lose(member, reason)
        self._requests.answered(effects)
        return effects
