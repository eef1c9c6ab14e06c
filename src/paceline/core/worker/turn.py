"""A worker's protocol: ask, read, compute, push, seal, ask again. Events in, sends out; no clock, no tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import msgspec

from paceline.core.effects import Send
from paceline.core.message_parts import PUSH_NBYTES, push_cuts
from paceline.core.worker.requests import Asking
from paceline.core.worker.required_state import Want, wanted
from paceline.core.worker.sealed_reports import Reports
from paceline.messages import (
    Abort,
    BlockFrame,
    EvalGrant,
    EvalOver,
    Evaluated,
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
from paceline.types import COORDINATOR, INIT_STEP, Fence, Hyper, NodeId, Placement

_PLAN_RETRY_S = 0.02  # the plan is on its way to the server; the push waits for it here


class WorkerState(StrEnum):
    """Where a worker is between two calls."""

    IDLE = "idle"
    ASKING = "asking"
    PULLING = "pulling"
    INITIALISING = "initialising"
    COMPUTING = "computing"
    OVER = "over"
    ABORTED = "aborted"


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

    def __init__(self, introduction: Register, *, resend_s: float = 2.0, part_nbytes: int = PUSH_NBYTES) -> None:
        """What goes to one server at once is sent in pushes of about `part_nbytes`."""
        self.introduction = introduction
        self.state = WorkerState.IDLE
        self.generation = 0
        self.incarnation = 0
        self.placement: Placement | None = None
        self.mine: dict[NodeId, tuple[int, ...]] = {}
        self.held: dict[NodeId, int] = {}
        self.task: Grant | EvalGrant | PhaseOver | EvalOver | None = None
        self.abort: Abort | None = None
        self.phase = -1
        self.progress = -1
        self.declared = 0
        self.lead = False
        self._asking = Asking(introduction.req, resend_s)
        self._reports = Reports()
        self._part_nbytes = part_nbytes
        self._evaluation = -1
        self._void_all = False

    # ------------------------------------------------------------ the host's calls

    def next_req(self) -> int:
        """A number for the next request."""
        return self._asking.next_req()

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
        self.mine = {s: prepared.placement.owned(s) for s in servers}
        self.mine = {s: blocks for s, blocks in self.mine.items() if blocks}
        found = {s: {versions.get(b, -1) for b in blocks} for s, blocks in self.mine.items()}
        self.held = {s: next(iter(known)) if len(known) == 1 else -1 for s, known in found.items()}

    def _replace(self, placement: Placement) -> None:
        """Blocks have changed hands: what is not committed is void, and nobody answers where no server is any more."""
        self._reports.clear()
        self._asking.forget_gone(placement.addresses)

    def _enter(self, incarnation: int) -> None:
        """The job went back to a checkpoint: what was read, pushed and sealed since belongs to another history."""
        if incarnation == self.incarnation:
            return
        self.incarnation = incarnation
        self.held = dict.fromkeys(self.held, -1)
        self._asking.pushes.clear()
        self._asking.given_back.clear()
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
        req = self._asking.next_req()
        turn = Turn(req, phase, self.incarnation, sealed, evaluated, abandoned, evaluation, self.declared)
        return [self._asking.ask(turn, now)]

    def push(
        self,
        now: float,
        parts: Mapping[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]],
        weight: float = 1.0,
    ) -> list[Send]:
        """Send the blocks of the current slot to their servers: provisional, or the end of the attempt.

        Of several pushes to a server, the last one has the seal; it says which blocks must be there.
        """
        task = self.task
        assert isinstance(task, Grant)
        out = []
        for server, (frames, payload, seal) in parts.items():
            for start, end in pairwise(push_cuts(frames, self._part_nbytes)):
                message = Push(
                    self._asking.next_req(),
                    task.incarnation,
                    task.epoch,
                    task.step,
                    task.slot,
                    task.fence,
                    self.held[server],
                    frames[start:end],
                    seal if end == len(frames) else None,
                    weight,
                )
                out.append(self._asking.push(server, message, payload[start:end], now))
        return out

    def sealed(self, now: float, weight: float, hyper: Hyper, logs: dict[str, float], seconds: float) -> list[Send]:
        """The slot is sealed (its sealing pushes are out): report it and ask for the next one."""
        task = self.task
        assert isinstance(task, Grant)
        report = Sealed(task.step, task.slot, task.fence, weight, hyper, logs, seconds)
        epoch = None if self.placement is None else self.placement.epoch
        self._reports.add(task, report, self.incarnation, epoch)
        if task.fence.generation < self.generation:
            self._reports.doubt()  # it may have taken a repeated turn for the end of this one
        return self.ask(now, self.phase, sealed=report, evaluation=self._evaluation)

    @property
    def resend_s(self) -> float:
        """After how long it says again what nobody answered."""
        return self._asking.resend_s

    @property
    def unacked(self) -> Collection[int]:
        """Requests of pushes that no server has answered yet; their payloads must not change."""
        return self._asking.pushes.keys()

    @property
    def turn(self) -> Turn | None:
        """What it last asked the coordinator for."""
        asked = self._asking.turn
        return None if asked is None else asked.message

    @property
    def version(self) -> int:
        """The version of all that the host's model has now; -1 if it has blocks of several."""
        versions = set(self.held.values())
        return versions.pop() if len(versions) == 1 else -1

    @property
    def last_step(self) -> int:
        """Its own last step, which an asynchronous worker waits to read; -2 if there is none to wait for."""
        return self._reports.last_step

    def introduce(self) -> Register:
        """A registration that tells how far this worker is."""
        return msgspec.structs.replace(
            self.introduction,
            req=self._asking.next_req(),
            incarnation=self.incarnation,
            progress=self.progress,
            declared=self.declared,
        )

    def reconnected(self, now: float) -> list[Send]:
        """Another coordinator speaks for the job: tell it who this is and what it holds, then ask again."""
        epoch = 0 if self.placement is None else self.placement.epoch
        leases = self._reports.leases(epoch)
        self._reports.doubt()
        task = self.task
        if isinstance(task, Grant) and self.state != WorkerState.ASKING and task.incarnation == self.incarnation:
            leases.append(HeldLease(task.step, task.slot, task.fence, None, task.epoch))
        introduction = msgspec.structs.replace(self.introduce(), leases=tuple(leases))
        return [self._asking.rejoin(introduction, now)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """The session with `server` came up (again): say at once what it has not answered."""
        return self._asking.greet(server, now)

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Effect]:
        """One message. The host carries out what is returned, in order."""
        match message:
            case PushAck(req=req):
                self._asking.pushes.pop(req, None)
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
                self._asking.taken_back(req)
            case Welcome(req=req) if message.generation >= self.generation:
                self.generation = message.generation
                rejoining = self._asking.rejoining
                if rejoining is None or rejoining.message.req != req:
                    return []
                self._asking.rejoining = None
                return list(self._ask_again(now))
        return []

    def _ask_again(self, now: float) -> list[Send]:
        """Registered anew: repeat what only the coordinator that is gone may have heard."""
        if self._void_all:
            self._void_all = False
            return self.ask(now, self.phase, evaluation=self._evaluation)
        asking = self._asking
        out = asking.give_back_again(now)
        if any(asked.message.after >= 0 for asked in asking.pulls.values()):
            return out + self._abandon(now)
        if asking.placing is not None:
            out.append(asking.placing.again(now))
        if asking.turn is not None and not asking.answered:
            out.append(asking.turn.again(now))
        return out

    def _placed(self, message: Prepared, now: float) -> list[Effect]:
        before = self.placement
        self.place(message)
        if self.placement is before or self.placement is None:
            return []
        out: list[Effect] = [Connect(dict(self.placement.addresses))]
        if self.task is not None and (self._asking.placing is not None or self._asking.pulls):
            # What it reads is read from where it is now: answers from where it was would not be complete.
            self._asking.placing = None
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
                self._asking.answered = True
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
        if not self._asking.is_turn(message.req):
            return False
        if not self._asking.answered:
            return True
        task = self.task
        if isinstance(task, EvalOver) or task is None or isinstance(message, EvalOver):
            return False
        if (message.incarnation, message.epoch) > (task.incarnation, task.epoch):
            return self.state == WorkerState.PULLING  # what it waits to read is no more
        if self.state != WorkerState.PULLING or not isinstance(task, Grant | EvalGrant):
            return False
        return not isinstance(message, Grant | EvalGrant) or message.fence > task.fence

    def _begin(self, task: Grant | EvalGrant | PhaseOver | EvalOver, now: float) -> list[Send]:
        self._asking.forget_pulls()
        if not isinstance(task, EvalOver) and (self.placement is None or self.placement.epoch < task.epoch):
            # The blocks have moved: learn where they are before reading them.
            self.state = WorkerState.PULLING
            return [self._asking.place(0 if self.placement is None else self.placement.epoch, now)]
        if isinstance(task, Grant) and task.step == INIT_STEP:
            self.state = WorkerState.INITIALISING
            return []
        want = wanted(task, self._reports.last_step)
        if want is None:
            self.state = WorkerState.OVER
            return []
        return self._read(want, now)

    def _read(self, want: Want, now: float) -> list[Send]:
        assert self.placement is not None
        out = []
        for server, blocks in self.mine.items():
            held = self.held[server]
            if want.exact >= 0 and held == want.exact:
                continue
            have = held if want.exact < 0 or held <= want.exact else -1
            pull = Pull(self._asking.next_req(), self.incarnation, self.placement.epoch, *want, have, blocks)
            out.append(self._asking.pull(server, pull, now))
        self.state = WorkerState.PULLING
        if not out:
            self._arrived()
        return out

    def _arrived(self) -> None:
        over = isinstance(self.task, PhaseOver | EvalOver)
        self.state = WorkerState.OVER if over else WorkerState.COMPUTING

    def _filled(self, sender: NodeId, message: PullReply, payload: Sequence[object], now: float) -> list[Effect]:
        asking = self._asking
        asked = asking.pulls.get(sender)
        if asked is None or asked.message.req != message.req or message.incarnation != self.incarnation:
            return []
        if asking.arrivals.is_outdated(sender, message):
            return []
        if not asking.arrivals.complete(sender, message):
            asked.sent = now  # the rest is on its way
            self.held[sender] = -1
            return [Fill(sender, message.blocks, payload)]
        del asking.pulls[sender]
        self.held[sender] = message.version
        if not asking.pulls:
            self._arrived()
        return [Fill(sender, message.blocks, payload)]

    def _refused(self, sender: NodeId, message: Refused, now: float) -> list[Effect]:
        if message.rule == "unknown":
            return list(self._rejoin(message, now))
        pushed = self._asking.pushes.get(message.req)
        pulling = self._asking.is_pull(message.req)
        if message.rule == "plan" and pushed is not None:
            self._asking.hurry(pushed, now, _PLAN_RETRY_S)
            return []
        out: list[Effect] = []
        if message.rule == "epoch" and (pulling or pushed is not None):
            assert self.placement is not None
            out.append(Send(COORDINATOR, PlacementRequest(self._asking.next_req(), self.placement.epoch)))
        if pulling:
            return out + self._abandon(now)
        if pushed is not None:
            del self._asking.pushes[message.req]
            out += self._give_back(pushed.message, now)
        return out

    def _rejoin(self, message: Refused, now: float) -> list[Send]:
        """The coordinator took this worker for lost: whatever it had is void. Register again, then ask again."""
        waiting = self.state in (WorkerState.ASKING, WorkerState.PULLING)
        asking = self._asking
        if asking.rejoining is not None or not waiting or not asking.is_turn(message.req):
            return []
        self.state, self.task = WorkerState.ASKING, None
        self._void_all = True
        asking.turn = None
        asking.forget_pulls()
        asking.given_back.clear()
        self._reports.clear()
        return [asking.rejoin(self.introduce(), now)]

    def _give_back(self, push: Push, now: float) -> list[Send]:
        """A push was refused: the attempt will never count, so its slot must go to somebody, once."""
        if not self._reports.take_back(push):
            return []
        out = [self._asking.give_back(push.fence, now)]
        if any(asked.message.after == push.step for asked in self._asking.pulls.values()):
            out += self._abandon(now)  # it waits to read its own step, which now waits for somebody to compute it
        return out

    def _abandon(self, now: float) -> list[Send]:
        task = self.task
        fence = task.fence if isinstance(task, Grant | EvalGrant) else None
        return self.ask(now, self.phase, abandoned=fence, evaluation=self._evaluation)

    def tick(self, now: float) -> list[Send]:
        """Say again what nobody answered. Receivers recognise repetitions."""
        asked = self._asking.rejoining
        if asked is not None and asked.is_due(now, self.resend_s):
            # It may be another coordinator by now that hears this first: how far the script is must be true today. What
            # it held when it began to ask is not changed: what came since will be asked for again.
            asked.message = msgspec.structs.replace(asked.message, progress=self.progress, declared=self.declared)
        return self._asking.repeat(now, waiting=self.state == WorkerState.PULLING)
