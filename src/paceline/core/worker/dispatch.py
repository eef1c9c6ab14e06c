"""A worker's protocol: routes every message to one handler, and composes the machines of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.core.effects import Send
from paceline.core.message_parts import PUSH_NBYTES, push_cuts
from paceline.core.worker.model_state import ModelState
from paceline.core.worker.next_lease import NextLease
from paceline.core.worker.reading import Reading
from paceline.core.worker.registration import Registration
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.sealed_reports import SealedReports
from paceline.core.worker.server_requests import ServerRequests
from paceline.core.worker.turn import CurrentTurn, Task, WorkerState
from paceline.messages import (
    Abort,
    BlockFrame,
    EvalGrant,
    EvalOver,
    Evaluated,
    Grant,
    Message,
    Ok,
    PhaseOver,
    PlacementRequest,
    Prepared,
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
from paceline.types import COORDINATOR, Fence, NodeId

_PLAN_RETRY_S = 0.02  # seconds until a push is repeated that came to a server before the plan of its step


@dataclass(frozen=True, slots=True)
class Fill:
    """Blocks that `server` has sent. The shell copies them into its model, in order, before the next turn begins."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    payload: Sequence[object]


@dataclass(frozen=True, slots=True)
class Connect:
    """The blocks have moved: connect to these servers, and to no others."""

    addresses: Mapping[NodeId, str]


WorkerEffect = Send | Fill | Connect
Pushed = Mapping[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]]
"""For each server: the frames to push, their content, and the seal if this push ends the attempt."""


class WorkerCore:
    """The protocol of one worker. The shell calls its methods and carries out the effects that they return, in order.

    The shell reads the machines (`registration`, `turn`, `model`, `requests`, `transfers`, `reports`) and changes none
    of them. Blocks for one server are cut into pushes of about `part_nbytes` each. A request that is not answered is
    repeated after `resend_s` seconds.
    """

    def __init__(
        self,
        introduction: Register,
        *,
        resend_s: float = 2.0,
        part_nbytes: int = PUSH_NBYTES,
        member: NodeId = "",
    ) -> None:
        """`member` is the member of this process; "" if blocks are on servers."""
        self.turn = CurrentTurn()
        self.model = ModelState(member)
        self.requests = CoordinatorRequests(introduction.req, resend_s)
        self.transfers = ServerRequests(resend_s)
        self.reports = SealedReports()
        self.next_lease = NextLease(self.turn, self.model, self.requests)
        self.registration = Registration(introduction, self.turn, self.model, self.requests)
        self._reading = Reading(self.turn, self.model, self.requests, self.transfers)
        self._part_nbytes = part_nbytes

    @property
    def state(self) -> WorkerState:
        """The state of the current turn."""
        return self.turn.state

    @property
    def task(self) -> Task | None:
        """The coordinator's answer to the current `Turn` message; None before it arrives."""
        return self.turn.task

    # ------------------------------------------------------------ the shell's calls

    def next_req(self) -> int:
        """Return a new request number, for a request that the shell makes itself."""
        return self.requests.next_req()

    def declare(self, count: int) -> None:
        """Note that the script has declared `count` validators; every `Turn` message contains this number."""
        self.turn.declare(count)

    def place(self, prepared: Prepared) -> None:
        """Note where the blocks are. Ignored: a placement of an older epoch, or from an older coordinator."""
        placement = prepared.placement
        if placement.epoch < self.model.epoch or not self.registration.accepts(prepared.generation):
            return
        self._enter(prepared.incarnation)
        if self.model.is_newer(placement):
            # A new placement voids what is not committed, and a server that is not in it answers no push.
            self.reports.clear()
            self.transfers.forget_pushes_except(placement.addresses)
        self.model.place(placement, dict(prepared.firsts))

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
        """Ask the coordinator for the next task, and report what was sealed, evaluated or abandoned before."""
        self.turn.ask(phase, evaluation)
        self.next_lease.clear()
        self.transfers.forget_pulls()
        req, declared = self.requests.next_req(), self.turn.declared
        turn = Turn(req, phase, self.model.incarnation, sealed, evaluated, abandoned, evaluation, declared)
        return [self.requests.ask(turn, now)]

    def push(self, now: float, parts: Pushed, weight: float = 1.0, report: Sealed | None = None) -> list[Send]:
        """Push blocks of the current slot to their servers: provisionally, or with the seal that ends the attempt.

        If a server gets several pushes, the last one has the seal, which names all blocks that the server must have,
        and the `report` of the slot.
        """
        task = self.turn.task
        assert isinstance(task, Grant)
        ahead, revision = self.model.ahead, task.revision
        out = []
        for server, (frames, payload, seal) in parts.items():
            for start, end in pairwise(push_cuts(frames, self._part_nbytes)):
                sealing = end == len(frames) and seal is not None
                message = Push(
                    self.requests.next_req(),
                    task.incarnation,
                    task.epoch,
                    task.step,
                    task.slot,
                    task.fence,
                    self.model.base_of(server),
                    frames[start:end],
                    seal if sealing else None,
                    weight,
                    report if sealing else None,
                    ahead,
                    revision,
                )
                out.append(self.transfers.push(server, message, payload[start:end], now))
        return out

    def sealed(self, now: float, report: Sealed) -> list[Send]:
        """Report the current slot, whose pushes with the seal have been sent, and ask for the next task.

        If the next lease is there already, its turn begins: the state for it is read at once.
        """
        task = self.turn.task
        assert isinstance(task, Grant)
        epoch = None if self.model.placement is None else self.model.placement.epoch
        self.reports.add(task, report, self.model.incarnation, epoch)
        if task.fence.generation < self.registration.generation:
            # The lease is of an older coordinator. The new one may take a repeated `Turn` for its end.
            self.reports.forget_last_step()
        turn, model = self.turn, self.model
        grant = self.next_lease.take(model.incarnation, model.epoch, self.registration.generation)
        if grant is None:
            return self.ask(now, turn.phase, sealed=report, evaluation=turn.evaluation)
        turn.ask(turn.phase, turn.evaluation)
        turn.take(grant)
        asked = self.next_lease.ask(grant, now, report)
        return [*self._reading.begin(grant, self.reports.last_step, now), asked]

    def reconnected(self, now: float) -> list[Send]:
        """Register with a new coordinator, with the leases held. After its `Welcome` the worker repeats its `Turn`."""
        self.next_lease.drop()  # a new coordinator leases that slot again
        leases = self.reports.leases(self.model.epoch)
        self.reports.forget_last_step()
        in_hand = self.turn.lease_in_hand(self.model.incarnation)
        if in_hand is not None:
            leases.append(in_hand)
        return [self.registration.renew(tuple(leases), now)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """Repeat every request that `server` has not answered: a session with it is up (again)."""
        return self.transfers.greet(server, now)

    def tick(self, now: float) -> list[Send]:
        """Repeat the requests that have waited long enough for an answer. Receivers recognise repetitions."""
        turn = self.turn
        waiting = turn.state == WorkerState.PULLING
        out = self.requests.repeat(now, waiting=waiting, progress=turn.progress, declared=turn.declared)
        return out + self.transfers.repeat(now) + self.requests.repeat_given_back(now)

    # ------------------------------------------------------------ messages

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[WorkerEffect]:
        """Handle one message from `sender`, and return the effects. The shell carries them out in order."""
        route = _ROUTES.get(type(message))
        out: list[WorkerEffect] = []
        if route is not None:
            out = route(self, message, now)
        elif isinstance(message, PullReply) and self._reading.receive(sender, message, now):
            out = [Fill(sender, message.blocks, payload)]
        task = self.turn.task
        computes = self.turn.state is WorkerState.COMPUTING
        if computes and isinstance(task, Grant) and task.ask_next and self.next_lease.asked_for != task.fence:
            return [*out, self.next_lease.ask(task, now)]
        return out

    def _on_push_ack(self, ack: PushAck, now: float) -> list[WorkerEffect]:
        self.transfers.end_push(ack.req)
        return []

    def _on_ok(self, ok: Ok, now: float) -> list[WorkerEffect]:
        self.requests.end_give_back(ok.req)
        return []

    def _on_abort(self, abort: Abort, now: float) -> list[WorkerEffect]:
        if self.registration.accepts(abort.generation):
            self.turn.end(abort)
        return []

    def _on_revoke(self, revoke: Revoke, now: float) -> list[WorkerEffect]:
        if not self.registration.accepts(revoke.generation):
            return []
        if revoke.fence == self.next_lease.fence:
            self.next_lease.drop()
            task = self.turn.task
            if self.turn.state is WorkerState.COMPUTING and isinstance(task, Grant):
                return [self.next_lease.ask(task, now)]
            return []
        if not self.turn.is_pulling_for(revoke.fence):
            return []
        return list(self.ask(now, self.turn.phase, evaluation=self.turn.evaluation))

    def _on_task(self, task: Task, now: float) -> list[WorkerEffect]:
        if not self.registration.accepts(task.generation) or not self.requests.is_turn(task.req):
            return []
        if self.next_lease.asked_for is not None:
            if isinstance(task, Grant) and self.next_lease.offer(task):
                self.requests.answer_turn()
                self.model.confirm_by(task)
            return []
        if self.requests.answered and not self.turn.accepts(task):
            return []
        assert self.turn.state is not WorkerState.COMPUTING, "the slot that is computed has no other answer"
        self.requests.answer_turn()
        self.turn.take(task)
        if not isinstance(task, EvalOver):
            self._enter(task.incarnation)
            self.model.confirm_by(task)
        return list(self._reading.begin(task, self.reports.last_step, now))

    def _on_prepared(self, prepared: Prepared, now: float) -> list[WorkerEffect]:
        before = self.model.placement
        self.place(prepared)
        placement = self.model.placement
        if placement is before or placement is None:
            return []
        out: list[WorkerEffect] = [Connect(self.model.addresses)]
        if self.turn.task is not None and self._reading.is_open:
            # Read again from the new primaries: the old ones do not have all blocks.
            self.requests.end_placement()
            out += self._reading.begin(self.turn.task, self.reports.last_step, now)
        return out

    def _on_welcome(self, welcome: Welcome, now: float) -> list[WorkerEffect]:
        """The worker is registered again: repeat the requests that perhaps only the previous coordinator received."""
        if not self.registration.welcome(welcome):
            return []
        if self.registration.readmit():
            return list(self.ask(now, self.turn.phase, evaluation=self.turn.evaluation))
        out: list[WorkerEffect] = [*self.requests.give_back_again(now)]
        if self.transfers.waits_for_step():
            return [*out, *self._abandon(now)]
        return [*out, *self.requests.ask_again(now)]

    def _on_refused(self, refused: Refused, now: float) -> list[WorkerEffect]:
        if refused.rule == "unknown":
            return list(self._register_again(refused, now))
        is_push, is_pull = self.transfers.is_push(refused.req), self.transfers.is_pull(refused.req)
        if refused.rule == "plan" and is_push:
            self.transfers.retry_push(refused.req, now, _PLAN_RETRY_S)
            return []
        out: list[WorkerEffect] = []
        if refused.rule == "epoch" and (is_pull or is_push):
            out.append(Send(COORDINATOR, PlacementRequest(self.requests.next_req(), self.model.epoch)))
        if is_pull:
            return [*out, *self._abandon(now)]
        push = self.transfers.end_push(refused.req)
        return out if push is None else [*out, *self._give_back(push, now)]

    # ------------------------------------------------------------ what handlers share

    def _enter(self, incarnation: int) -> None:
        """Enter `incarnation`. If it is a new one (after a rewind), drop what was read, pushed and sealed before."""
        if self.model.enter(incarnation):
            self.transfers.forget_pushes()
            self.requests.forget_given_back()
            self.reports.clear()

    def _register_again(self, refused: Refused, now: float) -> list[Send]:
        """Register again after an eviction. Its leases are void: it asks for a new task once it is registered."""
        if self.requests.is_registering or not self.turn.is_waiting or not self.requests.is_turn(refused.req):
            return []
        self.turn.cancel()
        self.requests.forget_turn()
        self.transfers.forget_pulls()
        self.reports.clear()
        self.next_lease.clear()
        return [self.registration.evict(now)]

    def _give_back(self, push: Push, now: float) -> list[Send]:
        """Tell the coordinator, once, that a server refused `push`: the slot needs another attempt."""
        if not self.reports.take_back(push):
            return []
        out = [self.requests.give_back(push.fence, now)]
        if self.transfers.waits_for_step(push.step):
            # The worker waits to read this step, which cannot be committed before that other attempt.
            out += self._abandon(now)
        return out

    def _abandon(self, now: float) -> list[Send]:
        return self.ask(now, self.turn.phase, abandoned=self.turn.fence, evaluation=self.turn.evaluation)


_ROUTES: Mapping[type[Message], Callable[[WorkerCore, Any, float], list[WorkerEffect]]] = {
    Abort: WorkerCore._on_abort,
    EvalGrant: WorkerCore._on_task,
    EvalOver: WorkerCore._on_task,
    Grant: WorkerCore._on_task,
    Ok: WorkerCore._on_ok,
    PhaseOver: WorkerCore._on_task,
    Prepared: WorkerCore._on_prepared,
    PushAck: WorkerCore._on_push_ack,
    Refused: WorkerCore._on_refused,
    Revoke: WorkerCore._on_revoke,
    Welcome: WorkerCore._on_welcome,
}
