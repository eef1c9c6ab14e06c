"""A worker's protocol: ask, read, compute, push, seal, ask again. Events in, sends out; no clock, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from paceline.core.effects import Send
from paceline.core.parts import Arrivals
from paceline.core.placement import owned
from paceline.core.window import needed_watermark
from paceline.messages import (
    Abort,
    BlockFrame,
    EvalGrant,
    EvalOver,
    Evaluated,
    GiveBack,
    Grant,
    HeldLease,
    Message,
    Ok,
    PhaseOver,
    PlacementRequest,
    Prepared,
    Pull,
    PullReply,
    Push,
    PushAck,
    Refused,
    Register,
    Revoke,
    Seal,
    Sealed,
    Turn,
    Welcome,
)
from paceline.types import COORDINATOR, INIT_STEP, UNLIMITED, Fence, Hyper, NodeId, Placement

_PLAN_RETRY_S = 0.02  # the plan is on its way to the server; the push waits for it here
_REMEMBERED = 4  # sealed slots whose report a new coordinator is told again


class WorkerState(StrEnum):
    """Where a worker is between two calls."""

    IDLE = "idle"
    ASKING = "asking"
    PULLING = "pulling"
    INITIALISING = "initialising"
    COMPUTING = "computing"
    OVER = "over"
    ABORTED = "aborted"


@dataclass(slots=True)
class _Unacked:
    server: NodeId
    message: Push
    payload: Sequence[object]
    sent: float


@dataclass(frozen=True, slots=True)
class Fill:
    """Blocks that arrived: put them into the model now, before the next event."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    payload: Sequence[object]


@dataclass(frozen=True, slots=True)
class Connect:
    """The blocks are elsewhere now: these servers, and no others, must be reached."""

    addresses: Mapping[NodeId, str]


Effect = Send | Fill | Connect


class WorkerCore:
    """One worker's side. The host calls in, sends what is returned, and looks at `state` and `task`.

    `held[server]` is the version of that server's blocks which the host's model has now, -1 while it has blocks of
    several. `progress` is how far the
    script is, as `Register` says it; the host counts the validations it has `declared`.
    """

    def __init__(self, introduction: Register, *, resend_s: float = 2.0) -> None:
        self.introduction = introduction
        self.resend_s = resend_s
        self.state = WorkerState.IDLE
        self.generation = 0
        self.incarnation = 0
        self.placement: Placement | None = None
        self.mine: dict[NodeId, tuple[int, ...]] = {}
        self.held: dict[NodeId, int] = {}
        self.task: Grant | EvalGrant | PhaseOver | EvalOver | None = None
        self.abort: Abort | None = None
        self.last_step = -2
        self.phase = -1
        self.progress = -1
        self.declared = 0
        self.lead = False
        self._req = introduction.req
        self._turn: Turn | None = None
        self._answered = False
        self._turn_sent = 0.0
        self._evaluation = -1
        self._pulls: dict[NodeId, tuple[Pull, float]] = {}
        self._arrivals = Arrivals()
        self._unacked: dict[int, _Unacked] = {}
        self._given_back: dict[int, tuple[GiveBack, float]] = {}
        self._void: Fence | None = None
        self._rejoining: tuple[Register, float] | None = None
        self._void_all = False
        self._placing: tuple[PlacementRequest, float] | None = None
        self._reports: deque[Sealed] = deque(maxlen=_REMEMBERED)

    # ------------------------------------------------------------ the host's calls

    def next_req(self) -> int:
        """A number for the next request."""
        self._req += 1
        return self._req

    def place(self, prepared: Prepared) -> None:
        """The coordinator said where the blocks are. What an older one said, or said earlier, is ignored."""
        if prepared.generation < self.generation:
            return
        if self.placement is not None and prepared.placement.epoch < self.placement.epoch:
            return
        self.generation = prepared.generation
        self._enter(prepared.incarnation)
        if self.placement is not None and prepared.placement.epoch > self.placement.epoch:
            self._replace(prepared.placement)
        self.placement = prepared.placement
        versions = {block: self.held[s] for s, blocks in self.mine.items() for block in blocks}
        servers = sorted(set(prepared.placement.owners) | set(prepared.placement.addresses))
        self.mine = {s: owned(prepared.placement.owners, s) for s in servers}
        self.mine = {s: blocks for s, blocks in self.mine.items() if blocks}
        found = {s: {versions.get(b, -1) for b in blocks} for s, blocks in self.mine.items()}
        self.held = {s: next(iter(known)) if len(known) == 1 else -1 for s, known in found.items()}

    def _replace(self, placement: Placement) -> None:
        """Blocks have changed hands: what is not committed is void, and nobody answers where no server is any more."""
        self.last_step = -2
        self._reports.clear()
        for req in [req for req, entry in self._unacked.items() if entry.server not in placement.addresses]:
            del self._unacked[req]

    def _enter(self, incarnation: int) -> None:
        """The job went back to a checkpoint: what was read, pushed and sealed since belongs to another history."""
        if incarnation == self.incarnation:
            return
        self.incarnation = incarnation
        self.held = dict.fromkeys(self.held, -1)
        self.last_step = -2
        self._unacked.clear()
        self._given_back.clear()
        self._reports.clear()

    def ask(
        self,
        now: float,
        phase: int,
        *,
        sealed: Sealed | None = None,
        evaluated: Evaluated | None = None,
        abandoned: Fence | None = None,
        evaluation: int = -1,
    ) -> list[Send]:
        """Report and ask for the next lease."""
        self.state, self.task, self.phase = WorkerState.ASKING, None, phase
        self.progress = max(self.progress, 2 * phase)
        self._evaluation = evaluation
        self._forget_pulls()
        self._placing = None
        self._turn = Turn(self.next_req(), phase, self.incarnation, sealed, evaluated, abandoned, evaluation)
        self._answered, self._turn_sent = False, now
        return [Send(COORDINATOR, self._turn)]

    def push(
        self,
        now: float,
        parts: Mapping[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]],
        weight: float = 1.0,
    ) -> list[Send]:
        """Send the blocks of the current slot to their servers: provisional, or the end of the attempt."""
        task = self.task
        assert isinstance(task, Grant)
        out = []
        for server, (frames, payload, seal) in parts.items():
            message = Push(
                self.next_req(),
                task.incarnation,
                task.epoch,
                task.step,
                task.slot,
                task.fence,
                self.held[server],
                frames,
                seal,
                weight,
            )
            self._unacked[message.req] = _Unacked(server, message, payload, now)
            out.append(Send(server, message, payload))
        return out

    def sealed(self, now: float, weight: float, hyper: Hyper, logs: dict[str, float], seconds: float) -> list[Send]:
        """The slot is sealed (its sealing pushes are out): report it and ask for the next one."""
        task = self.task
        assert isinstance(task, Grant)
        current = self.placement is None or task.epoch == self.placement.epoch
        if task.step != INIT_STEP and task.fence != self._void and current:
            # With several slots a step, waiting for one's own would be waiting for the others'.
            self.last_step = task.step if task.slots == 1 else -2
        report = Sealed(task.step, task.slot, task.fence, weight, hyper, logs, seconds)
        if task.incarnation == self.incarnation and task.fence != self._void and current:
            self._reports.append(report)
        return self.ask(now, self.phase, sealed=report, evaluation=self._evaluation)

    @property
    def unacked(self) -> Collection[int]:
        """Requests of pushes that no server has answered yet; their payloads must not change."""
        return self._unacked.keys()

    def introduce(self) -> Register:
        """A registration that tells how far this worker is."""
        return msgspec.structs.replace(
            self.introduction,
            req=self.next_req(),
            incarnation=self.incarnation,
            progress=self.progress,
            declared=self.declared,
        )

    def reconnected(self, now: float) -> list[Send]:
        """Another coordinator speaks for the job: tell it who this is and what it holds, then ask again."""
        epoch = 0 if self.placement is None else self.placement.epoch
        leases = [HeldLease(r.step, r.slot, r.fence, r, epoch) for r in self._reports]
        self.last_step = -2  # whether that will count is not known now, so nobody waits to read it
        task = self.task
        if isinstance(task, Grant) and self.state != WorkerState.ASKING and task.incarnation == self.incarnation:
            leases.append(HeldLease(task.step, task.slot, task.fence, None, task.epoch))
        introduction = msgspec.structs.replace(self.introduce(), leases=tuple(leases))
        self._rejoining = (introduction, now)
        return [Send(COORDINATOR, introduction)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """The session with `server` came up (again): say at once what it has not answered."""
        out = []
        asked = self._pulls.get(server)
        if asked is not None:
            self._pulls[server] = (asked[0], now)
            out.append(Send(server, asked[0]))
        for entry in self._unacked.values():
            if entry.server == server:
                entry.sent = now
                out.append(Send(server, entry.message, entry.payload))
        return out

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Effect]:
        """One message. The host carries out what is returned, in order."""
        match message:
            case PushAck(req=req):
                self._unacked.pop(req, None)
            case PullReply():
                return self._filled(sender, message, payload, now)
            case Refused():
                return self._refused(sender, message, now)
            case Abort() | Revoke() | Grant() | EvalGrant() | PhaseOver() | EvalOver():
                if message.generation < self.generation:
                    return []
                self.generation = message.generation
                return self._told(message, now)
            case Prepared():
                return self._placed(message, now)
            case Ok(req=req):
                self._given_back.pop(req, None)
            case Welcome(req=req) if message.generation >= self.generation:
                self.generation = message.generation
                if self._rejoining is None or self._rejoining[0].req != req:
                    return []
                self._rejoining = None
                return list(self._ask_again(now))
        return []

    def _ask_again(self, now: float) -> list[Send]:
        """Registered anew: repeat what only the coordinator that is gone may have heard."""
        if self._void_all:
            self._void_all = False
            return self.ask(now, self.phase, evaluation=self._evaluation)
        out = []
        for req, (give_back, _) in list(self._given_back.items()):
            self._given_back[req] = (give_back, now)
            out.append(Send(COORDINATOR, give_back))
        if any(pull.after >= 0 for pull, _ in self._pulls.values()):
            return out + self._abandon(now)
        if self._placing is not None:
            self._placing = (self._placing[0], now)
            out.append(Send(COORDINATOR, self._placing[0]))
        if self._turn is not None and not self._answered:
            self._turn_sent = now
            out.append(Send(COORDINATOR, self._turn))
        return out

    def _placed(self, message: Prepared, now: float) -> list[Effect]:
        before = self.placement
        self.place(message)
        if self.placement is before or self.placement is None:
            return []
        out: list[Effect] = [Connect(dict(self.placement.addresses))]
        if self._placing is not None and self.task is not None:
            self._placing = None
            out += self._begin(self.task, now)
        return out

    def _told(self, message: Abort | Revoke | Grant | EvalGrant | PhaseOver | EvalOver, now: float) -> list[Effect]:
        match message:
            case Abort():
                self.state, self.abort = WorkerState.ABORTED, message
            case Revoke(fence=fence):
                task = self.task
                if self.state == WorkerState.PULLING and isinstance(task, Grant | EvalGrant) and task.fence == fence:
                    return list(self.ask(now, self.phase, evaluation=self._evaluation))
            case _:
                if not self._expects(message):
                    return []
                self._answered = True
                self.task = message
                if not isinstance(message, EvalOver):
                    self.lead = message.lead
                    self._enter(message.incarnation)
                if isinstance(message, PhaseOver):
                    self.progress = max(self.progress, 2 * message.phase + 1)
                return list(self._begin(message, now))
        return []

    def _expects(self, message: Grant | EvalGrant | PhaseOver | EvalOver) -> bool:
        """Whether this answers the turn: the first answer does, and a later one if the first lease became void."""
        if self._turn is None or message.req != self._turn.req:
            return False
        if not self._answered:
            return True
        task = self.task
        if isinstance(task, EvalOver) or task is None or isinstance(message, EvalOver):
            return False
        if (message.incarnation, message.epoch) > (task.incarnation, task.epoch):
            return self.state == WorkerState.PULLING  # what it waits to read is no more
        if self.state != WorkerState.PULLING or not isinstance(task, Grant | EvalGrant):
            return False
        return not isinstance(message, Grant | EvalGrant) or message.fence > task.fence

    def _forget_pulls(self) -> None:
        self._pulls.clear()
        self._arrivals.clear()

    def _begin(self, task: Grant | EvalGrant | PhaseOver | EvalOver, now: float) -> list[Send]:
        self._forget_pulls()
        if not isinstance(task, EvalOver) and (self.placement is None or self.placement.epoch < task.epoch):
            # The blocks have moved: learn where they are before reading them.
            self.state = WorkerState.PULLING
            request = PlacementRequest(self.next_req(), 0 if self.placement is None else self.placement.epoch)
            self._placing = (request, now)
            return [Send(COORDINATOR, request)]
        match task:
            case Grant(step=step) if step == INIT_STEP:
                self.state = WorkerState.INITIALISING
                return []
            case Grant(segment=segment) if segment is not None:
                if segment.window == 0:
                    return self._read(now, exact=task.step)
                watermark = needed_watermark(segment.window, task.step)
                # Its own last step, unless that is what it is given again.
                own = segment.window == UNLIMITED and self.last_step != task.step
                after = self.last_step if own else -2
                return self._read(now, exact=-1, watermark=watermark, after=after)
            case EvalGrant(version=version):
                return self._read(now, exact=version)
            case PhaseOver(version=version) if version >= 0:
                return self._read(now, exact=version)
            case _:
                self.state = WorkerState.OVER
                return []

    def _read(self, now: float, *, exact: int, watermark: int = 0, after: int = -2) -> list[Send]:
        assert self.task is not None
        assert self.placement is not None
        out = []
        for server, blocks in self.mine.items():
            if exact >= 0 and self.held[server] == exact:
                continue
            have = self.held[server] if exact < 0 or self.held[server] <= exact else -1
            pull = Pull(self.next_req(), self.incarnation, self.placement.epoch, exact, watermark, after, have, blocks)
            self._pulls[server] = (pull, now)
            out.append(Send(server, pull))
        self.state = WorkerState.PULLING
        if not out:
            self._arrived()
        return out

    def _arrived(self) -> None:
        over = isinstance(self.task, PhaseOver | EvalOver)
        self.state = WorkerState.OVER if over else WorkerState.COMPUTING

    def _filled(self, sender: NodeId, message: PullReply, payload: Sequence[object], now: float) -> list[Effect]:
        asked = self._pulls.get(sender)
        if asked is None or asked[0].req != message.req or message.incarnation != self.incarnation:
            return []
        if self._arrivals.is_outdated(sender, message):
            return []
        if not self._arrivals.complete(sender, message):
            self.held[sender] = -1
            return [Fill(sender, message.blocks, payload)]
        del self._pulls[sender]
        self.held[sender] = message.version
        if not self._pulls:
            self._arrived()
        return [Fill(sender, message.blocks, payload)]

    def _refused(self, sender: NodeId, message: Refused, now: float) -> list[Effect]:
        if message.rule == "unknown":
            return list(self._rejoin(message, now))
        unacked = self._unacked.get(message.req)
        pulling = any(pull.req == message.req for pull, _ in self._pulls.values())
        if message.rule == "plan" and unacked is not None:
            unacked.sent = now - self.resend_s + _PLAN_RETRY_S
            return []
        out: list[Effect] = []
        if message.rule == "epoch" and (pulling or unacked is not None):
            assert self.placement is not None
            out.append(Send(COORDINATOR, PlacementRequest(self.next_req(), self.placement.epoch)))
        if pulling:
            return out + self._abandon(now)
        if unacked is not None:
            del self._unacked[message.req]
            out += self._give_back(unacked.message, now)
        return out

    def _rejoin(self, message: Refused, now: float) -> list[Send]:
        """The coordinator took this worker for lost: whatever it had is void. Register again, then ask again."""
        waiting = self.state in (WorkerState.ASKING, WorkerState.PULLING)
        if self._rejoining is not None or not waiting or self._turn is None or self._turn.req != message.req:
            return []
        self.state, self.task, self._turn, self.last_step = WorkerState.ASKING, None, None, -2
        self._void_all = True
        self._forget_pulls()
        self._given_back.clear()
        self._reports.clear()
        introduction = self.introduce()
        self._rejoining = (introduction, now)
        return [Send(COORDINATOR, introduction)]

    def _give_back(self, push: Push, now: float) -> list[Send]:
        """A push was refused: the attempt will never count, so its slot must go to somebody, once."""
        if self._void == push.fence:
            return []
        self._void = push.fence
        self._reports = deque((r for r in self._reports if r.fence != push.fence), _REMEMBERED)
        if self.last_step == push.step:
            self.last_step = -2
        give_back = GiveBack(self.next_req(), push.fence)
        self._given_back[give_back.req] = (give_back, now)
        out = [Send(COORDINATOR, give_back)]
        if any(pull.after == push.step for pull, _ in self._pulls.values()):
            out += self._abandon(now)  # it waits to read its own step, which now waits for somebody to compute it
        return out

    def _abandon(self, now: float) -> list[Send]:
        task = self.task
        fence = task.fence if isinstance(task, Grant | EvalGrant) else None
        return self.ask(now, self.phase, abandoned=fence, evaluation=self._evaluation)

    def tick(self, now: float) -> list[Send]:
        """Say again what nobody answered. Receivers recognise repetitions."""
        out = []
        if self._rejoining is not None and now - self._rejoining[1] >= self.resend_s:
            self._rejoining = (self._rejoining[0], now)
            out.append(Send(COORDINATOR, self._rejoining[0]))
        if self._placing is not None and now - self._placing[1] >= self.resend_s:
            self._placing = (self._placing[0], now)
            out.append(Send(COORDINATOR, self._placing[0]))
        # A turn that was answered is said again as well while its holder can only wait: the lease may be void by now.
        waiting = not self._answered or self.state == WorkerState.PULLING
        if self._turn is not None and waiting and now - self._turn_sent >= self.resend_s:
            self._turn_sent = now
            out.append(Send(COORDINATOR, self._turn))
        for server, (pull, sent) in list(self._pulls.items()):
            if now - sent >= self.resend_s:
                self._pulls[server] = (pull, now)
                out.append(Send(server, pull))
        for entry in self._unacked.values():
            if now - entry.sent >= self.resend_s:
                entry.sent = now
                out.append(Send(entry.server, entry.message, entry.payload))
        for req, (give_back, sent) in list(self._given_back.items()):
            if now - sent >= self.resend_s:
                self._given_back[req] = (give_back, now)
                out.append(Send(COORDINATOR, give_back))
        return out
