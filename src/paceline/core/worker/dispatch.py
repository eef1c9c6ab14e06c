"""A worker's protocol: routes every message to one handler, and composes the machines of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.core.effects import Send
from paceline.core.message_parts import PUSH_NBYTES, push_cuts
from paceline.core.worker.model_state import ModelState
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
from paceline.types import COORDINATOR, Fence, Hyper, NodeId

_PLAN_RETRY_S = 0.02  # the plan is on its way to the server; the push waits for it here


@dataclass(frozen=True, slots=True)
class Fill:
    """Blocks that arrived. The host puts them into its model, in order, before the script runs again."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    payload: Sequence[object]


@dataclass(frozen=True, slots=True)
class Connect:
    """The blocks have moved: connect to these servers, and to no others."""

    addresses: Mapping[NodeId, str]


WorkerEffect = Send | Fill | Connect
Pushed = Mapping[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]]
"""What goes to each server: frames, their content, and the seal if this ends the attempt."""


class WorkerCore:
    """One worker. The host calls in and carries out what is returned, in order.

    The host reads the machines (`registration`, `turn`, `model`, `requests`, `transfers`, `reports`) and changes none
    of them. What goes to one server at once is cut into pushes of about `part_nbytes`; `resend_s` is the time after
    which an unanswered request is repeated.
    """

    def __init__(self, introduction: Register, *, resend_s: float = 2.0, part_nbytes: int = PUSH_NBYTES) -> None:
        self.turn = CurrentTurn()
        self.model = ModelState()
        self.requests = CoordinatorRequests(introduction.req, resend_s)
        self.transfers = ServerRequests(resend_s)
        self.reports = SealedReports()
        self.registration = Registration(introduction, self.turn, self.model, self.requests)
        self._reading = Reading(self.turn, self.model, self.requests, self.transfers)
        self._part_nbytes = part_nbytes

    @property
    def state(self) -> WorkerState:
        """What the worker does now; the host waits for certain states."""
        return self.turn.state

    @property
    def task(self) -> Task | None:
        """The coordinator's answer to this turn; None before it arrives."""
        return self.turn.task

    # ------------------------------------------------------------ the host's calls

    def next_req(self) -> int:
        """A number for a request of the host itself."""
        return self.requests.next_req()

    def declare(self, count: int) -> None:
        """Note that the script has declared `count` validators; every turn says so."""
        self.turn.declare(count)

    def place(self, prepared: Prepared) -> None:
        """Note where the blocks are. A placement of an older coordinator, or an older one, is ignored."""
        placement = prepared.placement
        if placement.epoch < self.model.epoch or not self.registration.accepts(prepared.generation):
            return
        self._enter(prepared.incarnation)
        if self.model.is_newer(placement):
            # What is not committed is void, and a server that is not in the placement does not answer.
            self.reports.clear()
            self.transfers.forget_pushes_except(placement.addresses)
        self.model.place(placement)

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
        """Report what was done, and ask for the next lease."""
        self.turn.ask(phase, evaluation)
        self.transfers.forget_pulls()
        req, declared = self.requests.next_req(), self.turn.declared
        turn = Turn(req, phase, self.model.incarnation, sealed, evaluated, abandoned, evaluation, declared)
        return [self.requests.ask(turn, now)]

    def push(self, now: float, parts: Pushed, weight: float = 1.0) -> list[Send]:
        """Send blocks of the current slot to their servers: provisional ones, or those that end the attempt.

        Of several pushes to a server the last one has the seal, which names all blocks that must be there.
        """
        task = self.turn.task
        assert isinstance(task, Grant)
        out = []
        for server, (frames, payload, seal) in parts.items():
            for start, end in pairwise(push_cuts(frames, self._part_nbytes)):
                message = Push(
                    self.requests.next_req(),
                    task.incarnation,
                    task.epoch,
                    task.step,
                    task.slot,
                    task.fence,
                    self.model.held[server],
                    frames[start:end],
                    seal if end == len(frames) else None,
                    weight,
                )
                out.append(self.transfers.push(server, message, payload[start:end], now))
        return out

    def sealed(self, now: float, weight: float, hyper: Hyper, logs: dict[str, float], seconds: float) -> list[Send]:
        """Report the slot, whose sealing pushes have been sent, and ask for the next one."""
        task = self.turn.task
        assert isinstance(task, Grant)
        report = Sealed(task.step, task.slot, task.fence, weight, hyper, logs, seconds)
        epoch = None if self.model.placement is None else self.model.placement.epoch
        self.reports.add(task, report, self.model.incarnation, epoch)
        if task.fence.generation < self.registration.generation:
            # The new coordinator may have taken a repeated turn for the end of this one.
            self.reports.forget_last_step()
        return self.ask(now, self.turn.phase, sealed=report, evaluation=self.turn.evaluation)

    def reconnected(self, now: float) -> list[Send]:
        """Another coordinator speaks for the job: register with the leases held; its welcome repeats the turn."""
        leases = self.reports.leases(self.model.epoch)
        self.reports.forget_last_step()
        in_hand = self.turn.lease_in_hand(self.model.incarnation)
        if in_hand is not None:
            leases.append(in_hand)
        return [self.registration.renew(tuple(leases), now)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """The session with `server` is up (again): repeat at once what it has not answered."""
        return self.transfers.greet(server, now)

    def tick(self, now: float) -> list[Send]:
        """Repeat requests that are due. Receivers recognise repetitions."""
        turn = self.turn
        waiting = turn.state == WorkerState.PULLING
        out = self.requests.repeat(now, waiting=waiting, progress=turn.progress, declared=turn.declared)
        return out + self.transfers.repeat(now) + self.requests.repeat_given_back(now)

    # ------------------------------------------------------------ messages

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[WorkerEffect]:
        """Handle one message. The host carries out what is returned, in order."""
        route = _ROUTES.get(type(message))
        if route is not None:
            return route(self, message, now)
        if isinstance(message, PullReply) and self._reading.receive(sender, message, now):
            return [Fill(sender, message.blocks, payload)]
        return []

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
        if not self.registration.accepts(revoke.generation) or not self.turn.is_pulling_for(revoke.fence):
            return []
        return list(self.ask(now, self.turn.phase, evaluation=self.turn.evaluation))

    def _on_task(self, task: Task, now: float) -> list[WorkerEffect]:
        if not self.registration.accepts(task.generation) or not self.requests.is_turn(task.req):
            return []
        if self.requests.answered and not self.turn.accepts(task):
            return []
        self.requests.answer_turn()
        self.turn.take(task)
        if not isinstance(task, EvalOver):
            self._enter(task.incarnation)
        return list(self._reading.begin(task, self.reports.last_step, now))

    def _on_prepared(self, prepared: Prepared, now: float) -> list[WorkerEffect]:
        before = self.model.placement
        self.place(prepared)
        placement = self.model.placement
        if placement is before or placement is None:
            return []
        out: list[WorkerEffect] = [Connect(dict(placement.addresses))]
        if self.turn.task is not None and self._reading.is_open:
            # Read again from the new primaries: the old ones do not have all blocks.
            self.requests.end_placement()
            out += self._reading.begin(self.turn.task, self.reports.last_step, now)
        return out

    def _on_welcome(self, welcome: Welcome, now: float) -> list[WorkerEffect]:
        """Registered again: repeat what only the coordinator before may have received."""
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
        """After a rewind, what was read, pushed and sealed before does not count."""
        if self.model.enter(incarnation):
            self.transfers.forget_pushes()
            self.requests.forget_given_back()
            self.reports.clear()

    def _register_again(self, refused: Refused, now: float) -> list[Send]:
        """The coordinator took this worker for lost, so all that it had is void: register, then ask again."""
        if self.requests.is_registering or not self.turn.is_waiting or not self.requests.is_turn(refused.req):
            return []
        self.turn.cancel()
        self.requests.forget_turn()
        self.transfers.forget_pulls()
        self.reports.clear()
        return [self.registration.evict(now)]

    def _give_back(self, push: Push, now: float) -> list[Send]:
        """Once for an attempt that a server refused: another attempt at the slot is needed."""
        if not self.reports.take_back(push):
            return []
        out = [self.requests.give_back(push.fence, now)]
        if self.transfers.waits_for_step(push.step):
            out += self._abandon(now)  # it waits to read its own step, which now waits for another attempt
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
