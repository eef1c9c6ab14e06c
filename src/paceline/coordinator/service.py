"""A coordinator process: the core, its durable log, a port and a blocking poll."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.coordinator.digest import DigestReader
from paceline.coordinator.report import status_of, summary_of
from paceline.coordinator.store import LogStore
from paceline.core.coordinator import CoordinatorCore
from paceline.core.effects import Effect, Send, Write
from paceline.core.membership import RunningTime
from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Finish, Message, PullReply, Shutdown, StatusReply, StatusRequest, Summary
from paceline.transport.base import Event, Frame, PeerDown, PeerUp, Port, Received
from paceline.types import NodeId

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Times:
    """When the run began and when its last commit was, by the caller's monotonic clock."""

    began: float | None = None
    last: float | None = None
    versions: list[tuple[float, int, float]] = field(default_factory=list)


class CoordinatorService:
    """Feeds events to the core and carries out its effects, in their order. Driven by `on_event` and `on_tick`."""

    def __init__(self, port: Port, spec: ClusterSpec, log: LogStore, *, run: str = "") -> None:
        self.port = port
        self.spec = spec
        self.log = log
        self.run = run
        self.core = CoordinatorCore(spec, log.generation)
        self.ended: str | None = None
        self.times = Times()
        self._running = RunningTime()
        self._digest: DigestReader | None = None
        self._finishing: list[tuple[NodeId, int]] = []
        self._summary: bytes | None = None

    def on_event(self, event: Event, now: float) -> None:
        """One event of the port."""
        match event:
            case Received(peer=peer, message=message, frames=frames):
                self._received(peer, message, frames, now)
            case PeerDown(peer=peer, reason=reason):
                # A broken connection is not a death: the peer may come back. Its exit is reported by the engine,
                # its silence by its heartbeats.
                logger.debug("session with %s ended: %s", peer, reason)
            case PeerUp():
                pass

    def _received(self, peer: NodeId, message: Message, frames: Sequence[Frame], now: float) -> None:
        match message:
            case StatusRequest(req=req):
                self._reply(peer, StatusReply(req, msgspec.json.encode(self.status(now))))
            case Finish(req=req):
                self._finish(peer, req, now)
            case Shutdown(reason=reason):
                self.ended = reason
            case PullReply() if self._digest is not None:
                for send in self._digest.received(peer, message, frames):
                    self._reply(send.to, send.message)
                self._conclude(now)
            case _:
                before = self.core.version
                running = self._running.advance(now)
                self._carry_out(self.core.handle(peer, message, frames, running))
                if self.core.version != before:
                    self._note_commit(now)

    def on_tick(self, now: float) -> None:
        """Time passes; the caller has drained the port before."""
        self._carry_out(self.core.tick(self._running.advance(now)))

    def _note_commit(self, now: float) -> None:
        if self.core.version == 0:
            self.times.began = now
        self.times.last = now
        history = self.times.versions
        if not history or now - history[-1][0] >= 0.2:
            history.append((now, self.core.version, self.core.totals.samples))
            if len(history) > 25:
                del history[0]

    # ------------------------------------------------------------ effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        rows: list[Write] = []
        sends: list[Send] = []
        for effect in effects:
            if isinstance(effect, Write):
                rows.append(effect)
            else:
                sends.append(effect)
        if rows:
            # All rows of one event in one transaction: each is durable before any send behind it.
            self.log.write(rows)
        for send in sends:
            self._reply(send.to, send.message)

    def _reply(self, to: NodeId, message: Message) -> None:
        try:
            self.port.send(to, message)
        except (PeerUnknownError, PeerLostError) as error:
            logger.debug("not sent to %s: %s", to, error)

    # ------------------------------------------------------------ reports

    def status(self, now: float) -> dict[str, object]:
        """What `paceline status` and the progress line show."""
        return status_of(self.core, self.times, now, self.run)

    def _finish(self, peer: NodeId, req: int, now: float) -> None:
        if self._summary is not None:
            self._reply(peer, Summary(req, self._summary))
            return
        self._finishing.append((peer, req))
        if self._digest is None and self.core.failure is None and self.core.version >= 0:
            self._digest = DigestReader(self.core)
            for send in self._digest.start():
                self._reply(send.to, send.message)
        self._conclude(now)

    def _conclude(self, now: float) -> None:
        if self._digest is not None and self._digest.value is None:
            return
        if not self._finishing:
            return
        digest = self._digest.value if self._digest is not None else None
        self._summary = msgspec.json.encode(summary_of(self.core, self.times, self.run, digest))
        self.log.put("summary", self._summary.decode())
        for peer, req in self._finishing:
            self._reply(peer, Summary(req, self._summary))
        self._finishing.clear()
