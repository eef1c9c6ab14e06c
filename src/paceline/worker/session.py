"""A worker's session: sends and receives all messages of its core, and blocks the script until an answer arrives."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar, cast

import msgspec

from paceline.clients.redial import Find, Redial, is_coordinator
from paceline.config.dials import REACH_S
from paceline.core.effects import Send
from paceline.core.worker.dispatch import Connect, Fill, WorkerCore, WorkerEffect
from paceline.core.worker.reachability import ServerReachability
from paceline.core.worker.turn import WorkerState
from paceline.errors import (
    ClusterLostError,
    DeadlineError,
    JobError,
    JobFailedError,
    JobRewoundError,
    JobStoppedError,
    MismatchError,
    PeerLostError,
    PeerUnknownError,
    RefusedFrameError,
    TransportError,
    UsageError,
)
from paceline.messages import (
    Abort,
    BeginPhase,
    Bye,
    Claim,
    ClaimDone,
    Declare,
    DeclarePolicy,
    Failed,
    Message,
    Ok,
    Prepare,
    Prepared,
    Push,
    Refused,
    Register,
    Samplers,
    SaveNow,
    SetDials,
    StatusRequest,
    Stop,
    Warn,
    Welcome,
)
from paceline.transport.base import Delivery, Event, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, NodeId
from paceline.wire.headers import decode_header, encode_header
from paceline.worker.preemption import Preemption
from paceline.worker.sampler_link import SamplerLink

Reply = TypeVar("Reply", bound=Message)
_POLL_S = 0.2  # the longest wait for one event
_FLUSH_S = 1.0  # a worker that leaves waits this long for the answers to its pushes
_BYE_S = 3.0  # and this long for the answer to `Bye`
_ANSWERS: Mapping[type[Message], str] = {
    BeginPhase: "begin the loop",
    Bye: "let this worker leave",
    Claim: "say which worker saves",
    ClaimDone: "note that the model is saved",
    Declare: "take the validation",
    DeclarePolicy: "take the policy",
    Failed: "take the error of the script",
    Prepare: "take the model",
    Register: "let this worker join",
    SaveNow: "begin a checkpoint",
    SetDials: "set the dials",
    StatusRequest: "report its status",
    Stop: "stop the job",
    Warn: "take the warning",
}
"""What the coordinator does on each request, in the words of an error."""


class Session:
    """Sends and receives all messages of a worker. Not thread-safe.

    `silent_s` returns for how many seconds the coordinator has been silent (0 if it runs in this process). A wait ends
    with `DeadlineError` once that exceeds `timeout_s`, and with the job's own error once the job has ended. Until then
    a coordinator may die and another one start, at the address that `find` returns: the worker registers with the
    leases that it holds, and repeats its requests. A request to leave (`preemption`) ends a wait, between two events.
    """

    def __init__(
        self,
        port: Port,
        introduction: Register,
        *,
        timeout_s: float,
        silent_s: Callable[[], float] = lambda: 0.0,
        find: Find | None = None,
        preemption: Preemption | None = None,
        member: NodeId = "",
    ) -> None:
        """`member` is the member of this process; "" if blocks are on servers."""
        self.port = port
        self.core = WorkerCore(introduction, member=member)
        self.timeout_s = timeout_s
        self.silent_s = silent_s
        self.preemption = Preemption() if preemption is None else preemption
        self._find = find
        self._redial: Redial | None = None
        self._registered_at: NodeId | None = None
        self._servers: dict[NodeId, str] = {}
        self._reachability = ServerReachability(REACH_S)
        self._last_down: str | None = None
        self._next_tick = 0.0
        self._awaiting: int | None = None
        self._reply: Message | None = None
        self._resend_at = 0.0
        self._fills: deque[Fill] = deque()
        self._joined: list[Send] | None = None
        self._deliveries: dict[int, list[Delivery]] = {}
        self.samplers = SamplerLink(port, self.core.next_req)

    @property
    def coordinator(self) -> NodeId | None:
        """The coordinator's identity; None while there is no session with it."""
        return None if self._redial is None else self._redial.peer

    # ------------------------------------------------------------ connecting

    def open(self, address: str) -> Welcome:
        """Connect to the coordinator at `address` (or where `find` says) and register. Blocks until it answers."""
        with self.preemption:
            self._redial = Redial(self.port, self._find or (lambda: address))
            self._redial.tick(0.0)
            self._run_until(lambda: self.coordinator is not None, f"accept a session at {address}")
            introduction = self.core.registration.introduction
            welcome = self._ask(lambda req: msgspec.structs.replace(introduction, req=req), Welcome)
            self._registered_at = self.coordinator
            self._reachability.set_reach(welcome.reach_s)
            return welcome

    def place(self, prepared: Prepared) -> None:
        """Connect to the servers that have the blocks. A server without a session gets its messages once it has one."""
        with self.preemption:
            self.core.place(prepared)
            if self.core.model.placement is not None:
                self._connect(self.core.model.addresses)

    def _connect(self, addresses: Mapping[NodeId, str]) -> None:
        for node, address in list(self._servers.items()):
            if addresses.get(node) != address:
                del self._servers[node]
                self.port.disconnect(address)
        for node, address in addresses.items():
            if node not in self._servers:
                self._servers[node] = address
                self.port.connect(address)

    # ------------------------------------------------------------ requests

    def ask(self, make: Callable[[int], Message], expect: type[Reply]) -> Reply:
        """Send a request and wait for its reply, for as long as the coordinator lives and works on it.

        If the coordinator has evicted this worker, the worker registers again and repeats the request.
        """
        with self.preemption:
            return self._ask(make, expect)

    def _ask(self, make: Callable[[int], Message], expect: type[Reply], patience_s: float | None = None) -> Reply:
        until = None if patience_s is None else time.monotonic() + patience_s
        while True:
            message = make(self.core.next_req())
            reply = self._exchange(message, until)
            if isinstance(reply, Refused) and reply.rule == "unknown" and expect is not Welcome:
                self._register_again(until)
                continue
            if isinstance(reply, Refused):
                raise UsageError(f"the coordinator did not {_ANSWERS.get(type(message), 'answer')}: {reply.detail}")
            assert isinstance(reply, expect), f"asked for {expect.__name__}, got {reply}"
            return reply

    def _register_again(self, until: float | None) -> None:
        for send in self.core.reconnected(time.monotonic()):
            welcome = self._exchange(send.message, until)
            self._carry_out(self.core.handle(COORDINATOR, welcome, (), time.monotonic()))

    def _exchange(self, message: Message, until: float | None = None) -> Message:
        awaited = _ANSWERS.get(type(message), "answer")
        try:
            decode_header(encode_header(message))
        except RefusedFrameError as error:
            # The coordinator could not read the message, and would never answer.
            raise UsageError(f"the coordinator cannot {awaited}: the request is not valid ({error.detail})") from None
        self._awaiting, self._reply = getattr(message, "req"), None  # noqa: B009 - every request has one
        self._resend_at = 0.0
        try:
            while self._reply is None:
                now = time.monotonic()
                if until is not None and now > until:
                    raise DeadlineError(COORDINATOR, awaited, self.silent_s())
                if now >= self._resend_at:
                    self._resend_at = now + self.core.requests.resend_s
                    self._send_all([Send(COORDINATOR, message)])
                self._step(awaited)
        finally:
            self._awaiting = None
        return self._reply

    def wait(
        self, states: frozenset[WorkerState], awaited: str, fill: Callable[[Fill], None] | None = None
    ) -> WorkerState:
        """Wait until the core is in one of `states`.

        `awaited` completes the error "the coordinator did not …". `fill` is called with the blocks that have arrived,
        in order. Without `fill` they are kept for the next wait that has one.
        """
        with self.preemption:
            while True:
                while fill is not None and self._fills:
                    fill(self._fills.popleft())
                if self.core.state in states:
                    return self.core.state
                self._step(awaited)

    def say(self, sends: Sequence[Send]) -> None:
        """Send without waiting."""
        with self.preemption:
            if self._joined is None:
                self._send_all(sends)
            else:
                self._joined += sends

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Send all that is said in the `with` block at its end: messages to one peer then go together."""
        joined: list[Send] = []
        self._joined = joined
        try:
            yield
        finally:
            self._joined = None
            self._send_all(joined)

    def drain(self) -> None:
        """Handle the messages that have arrived, without waiting. The next wait raises if the job has ended."""
        with self.preemption:
            while (event := self.port.recv(0.0)) is not None:
                self._handle(event, time.monotonic())

    def pump(self, awaited: str, wait_s: float) -> None:
        """Handle one event if it comes within `wait_s`; raises as every wait does."""
        with self.preemption:
            self._step(awaited, min(wait_s, _POLL_S))

    def leave(self) -> None:
        """Leave after a request to leave: wait until sealed gradients have arrived, then hand the slot back with `Bye`.

        Takes a few seconds at most; raises nothing.
        """
        self.preemption.accept()
        with suppress(JobError, TransportError):
            until = time.monotonic() + _FLUSH_S
            self._run_until(
                lambda: not self.core.transfers.unacked or time.monotonic() > until, "answer while pushes were sent"
            )
            self._ask(Bye, Ok, _BYE_S)

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate memory that peers on this host can read without a copy."""
        return self.port.memory.allocate(nbytes)

    def lent(self) -> Collection[int]:
        """The numbers of pushes whose payload the transport still reads."""
        for req in [r for r, deliveries in self._deliveries.items() if all(d.done for d in deliveries)]:
            del self._deliveries[req]
        return self._deliveries.keys()

    # ------------------------------------------------------------ events

    def _run_until(self, done: Callable[[], bool], awaited: str) -> None:
        while not done():
            self._step(awaited)

    def _step(self, awaited: str, wait_s: float = _POLL_S) -> None:
        """Handle one event. Raises if the coordinator has been silent for too long, or the job has ended."""
        self.preemption.check()
        assert self._redial is not None
        event = self.port.recv(wait_s)
        now = time.monotonic()
        if event is not None:
            self._handle(event, now)
        elif (silent := self.silent_s()) > self.timeout_s:
            what = f"{awaited} ({self._last_down})" if self._last_down else awaited
            step = getattr(self.core.task, "step", None)
            raise DeadlineError(COORDINATOR, what, silent, step, "PACELINE_TIMEOUT_S")
        if event is None or now >= self._next_tick:
            self._next_tick = now + _POLL_S
            self._redial.tick(now)
            self._send_all(self.core.tick(now))
            self._report_reachability(now)
        if self.core.turn.abort is not None:
            raise error_of(self.core.turn.abort)

    def _handle(self, event: Event, now: float) -> None:
        assert self._redial is not None
        self._redial.note(event)
        if self.samplers.handle(event, now):
            return
        match event:
            case Received(peer=peer, message=message, frames=frames):
                self._received(peer, message, frames, now)
            case PeerUp(peer=peer):
                self._reachability.up(peer)
                self._greet(peer, now)
            case PeerDown(peer=peer, reason=reason):
                self._reachability.down(peer)
                self._last_down = f"{peer}: {reason}"

    def _report_reachability(self, now: float) -> None:
        """Tell the coordinator which servers this worker cannot reach. The coordinator decides what follows."""
        model = self.core.model
        if model.placement is not None:
            reports = self._reachability.tick(now, model.targets, model.epoch)
            self._send_all([Send(COORDINATOR, report) for report in reports])

    def _greet(self, peer: NodeId, now: float) -> None:
        """Send to `peer`, whose session is up (again), what it has not answered."""
        if not is_coordinator(peer):
            self._send_all(self.core.greet(peer, now))
            return
        self._resend_at = 0.0  # repeat the open request without waiting; a new coordinator gets the registration first
        if self._registered_at not in (None, peer):
            self._registered_at = peer
            self._send_all(self.core.reconnected(now))

    def _received(self, peer: NodeId, message: Message, frames: Sequence[memoryview], now: float) -> None:
        if type(message) is Samplers:
            self.samplers.roster(message)
            return
        if self._awaiting is not None and getattr(message, "req", None) == self._awaiting and peer == self.coordinator:
            self._reply = message
            return
        sender = COORDINATOR if peer == self.coordinator else peer
        self._carry_out(self.core.handle(sender, message, frames, now))

    def _carry_out(self, effects: Sequence[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case Fill():
                    self._fills.append(effect)
                case Connect(addresses=addresses):
                    self._connect(addresses)
                case Send():
                    self._send_all([effect])

    def _send_all(self, sends: Sequence[Send]) -> None:
        last = {send.to: number for number, send in enumerate(sends)}
        for number, send in enumerate(sends):
            to = self.coordinator if send.to == COORDINATOR else send.to
            if to is None:
                continue
            later = number < last[send.to]
            try:
                delivery = self.port.send(to, send.message, cast(Sequence[memoryview], send.payload), later=later)
            except (PeerUnknownError, PeerLostError):
                continue  # the core repeats the message, at the latest when the session with the peer is up again
            if isinstance(send.message, Push) and send.payload and not delivery.done:
                self._deliveries.setdefault(send.message.req, []).append(delivery)


def error_of(abort: Abort) -> Exception:
    """The exception to raise for `abort`, by which the coordinator has ended the job."""
    if abort.kind == "script":
        # Without a traceback no script raised: the coordinator has found that workers differ.
        return JobFailedError(abort.reason, abort.trace) if abort.trace else MismatchError(abort.reason)
    if abort.kind == "lost":
        return ClusterLostError(abort.reason)
    if abort.kind == "rewound":
        return JobRewoundError(abort.reason)
    return JobStoppedError(abort.reason)
