"""The thread of a sampler that talks: to workers, which ask for batches, and to the coordinator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from paceline.clients.redial import Find, Redial
from paceline.core.running_time import RunningTime
from paceline.core.sampler.preparing import Answer, Drop, Effect, Refuse
from paceline.data.parcel import Parcel, Unfit, pack
from paceline.errors import ClusterLostError, DeadlineError, RefusedFrameError, TransportError
from paceline.messages import Abort, AskSlot, Message, Refused, SamplerBeat, SamplerNews, SlotPrepared
from paceline.sampler.desk import Desk, Made
from paceline.telemetry import tracing
from paceline.transport.base import Event, PeerDown, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort
from paceline.types import COORDINATOR, NodeId, SlotId, name_of

_BEAT_S = 0.25
_POLL_S = 0.1


class Introduction(NamedTuple):
    """What a sampler tells about itself: start number `start` of `name`, on `host`."""

    name: str
    start: int
    host: str


class SamplerService:
    """Owns the port in a thread of its own, so that workers are answered while the script prepares a batch.

    If the coordinator is silent for `timeout_s`, the script's next wait raises.
    """

    def __init__(
        self, make_port: Callable[[], ZmqPort], introduction: Introduction, find: Find, *, timeout_s: float
    ) -> None:
        self._port = make_port()
        self.desk = Desk(introduction.name, self._port.waker().wake)
        self._me = introduction
        self._redial = Redial(self._port, find)
        self._timeout_s = timeout_s
        self._ran = RunningTime()
        self._heard = 0.0
        self._req = 0
        self._due = 0.0
        self._held: dict[SlotId, tuple[Parcel, float]] = {}
        self._phase, self._evaluation = -1, -1
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-sampler", daemon=True)

    @property
    def node(self) -> NodeId:
        """The node id of this sampler."""
        return self._port.node

    @property
    def address(self) -> str:
        """Where workers find it."""
        return self._port.address or ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the port. Idempotent."""
        self._closing.set()
        self._port.waker().wake()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                now = time.monotonic()
                self._tick(now)
                event = self._port.recv(_POLL_S)
                while event is not None:
                    self._redial.note(event)
                    self._handle(event)
                    event = self._port.recv(0.0)
                while (made := self.desk.take()) is not None:
                    self._carry_out(self._pack(made))
        except Exception as error:
            self.desk.fail(error)
        finally:
            self._held.clear()
            self._port.close()

    def _tick(self, now: float) -> None:
        self._ran.advance(now)
        self._redial.tick(now)
        desk = self.desk
        self._carry_out(desk.ended())
        silent_s = self._ran.value - self._heard
        if silent_s > self._timeout_s:
            self.desk.fail(DeadlineError(COORDINATOR, "answer", silent_s, None, "PACELINE_TIMEOUT_S"))
        state = desk.phase, desk.evaluation
        if (now >= self._due or state != (self._phase, self._evaluation)) and self._redial.peer is not None:
            self._due, (self._phase, self._evaluation) = now + _BEAT_S, state
            self._req += 1
            me, address = self._me, self._port.address or ""
            beat = SamplerBeat(self._req, me.name, me.start, me.host, address, desk.phase, desk.work, desk.evaluation)
            self._send(self._redial.peer, beat)

    def _handle(self, event: Event) -> None:
        match event:
            case Received(peer=peer, message=AskSlot() as message):
                self._carry_out(self.desk.question(peer, message))
            case Received(peer=peer, message=SamplerNews() as news) if peer == self._redial.peer:
                self._heard = self._ran.value
                if news.req != self._req or self.desk.evaluation != self._evaluation:
                    news = replace(news, result=None)  # it may be that of another validation
                self.desk.tell(news, tuple(sorted(name_of(node) for node, _ in news.samplers)))
            case Received(peer=peer, message=Abort() as abort) if peer == self._redial.peer:
                self.desk.fail(ClusterLostError(abort.reason))
            case PeerUp(peer=peer) if peer == self._redial.peer:
                self._due = 0.0
            case PeerDown(peer=peer):
                self.desk.forget(peer)

    # ------------------------------------------------------------ batches

    def _pack(self, made: Made) -> list[Effect]:
        if not self.desk.expects(made):
            return []
        if made.error:
            return self.desk.failed(made, "raised", made.error)
        with tracing.span("pack", step=made.slot.step, slot=made.slot.slot):
            packed = pack(made.content, self._port.memory.allocate_raw)
        if isinstance(packed, Unfit):
            return self.desk.failed(made, "batch", packed.reason)
        self._held[made.slot] = packed, made.seconds
        return self.desk.prepared(made, packed.nbytes)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(question=question, slot=slot):
                    packed, seconds = self._held[slot]
                    reply = SlotPrepared(question.req, packed.structure, packed.blocks, seconds)
                    self._send(question.peer, reply, packed.frames)
                case Refuse(question=question, rule=rule, detail=detail):
                    self._send(question.peer, Refused(question.req, rule, detail))
                case Drop(slot=slot):
                    self._held.pop(slot, None)

    def _send(self, peer: NodeId, message: Message, frames: Sequence[memoryview] = ()) -> None:
        # A worker that is gone asks again, or has prepared the batch itself.
        with contextlib.suppress(TransportError, RefusedFrameError):
            self._port.send(peer, message, frames)
