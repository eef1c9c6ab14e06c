"""A server process: the core, a port, and a blocking poll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline.blocks.chunk_update import Frozen
from paceline.blocks.chunks import Part
from paceline.blocks.threads import Threads
from paceline.checkpoint.manifest import folder_name
from paceline.checkpoint.storage import Storage
from paceline.clients.links import Links
from paceline.clients.redial import is_coordinator
from paceline.core.effects import Send
from paceline.core.message_parts import PART_NBYTES
from paceline.core.server.dispatch import ServerCore
from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import BeatAck, Message, Probe, Register, Shutdown, Welcome
from paceline.server.checkpoint_writer import Saver
from paceline.server.dense_store import DenseStore
from paceline.telemetry import tracing
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, NodeId


class ServerService:
    """Feeds events to the core and sends what it returns. One per port; driven by `on_event` and `on_tick`.

    Coordinators come and go: a new one is told what this server has, and without one it keeps what it has. A version
    that is to be saved is written in the background. `close` ends that. Other servers that have copies of its blocks
    are kept in reach.
    """

    def __init__(
        self,
        port: Port,
        introduction: Register,
        *,
        storage: Storage | None = None,
        threads: int = 1,
        part_nbytes: int = PART_NBYTES,
    ) -> None:
        """Large updates are shared out to `threads`, of which one is the caller's; see `Holding` for `part_nbytes`."""
        self.port = port
        self.introduction = introduction
        self._crew = Threads(threads)
        self.core = ServerCore(
            port.node,
            lambda: DenseStore(storage, memory=port.memory, crew=self._crew),
            part_nbytes=part_nbytes,
        )
        self.store = cast(DenseStore, self.core.own.store)
        self.coordinator: NodeId | None = None
        self.ended: str | None = None
        self._saver = Saver(storage, port.node)
        self._frozen: Frozen | None = None
        self._links = Links(port)
        self._epoch = (0, 0)
        self._now = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """One event of the port."""
        self._now = now
        match event:
            case PeerUp(peer=peer, address=address):
                self._links.note(event, now)
                if address is not None and is_coordinator(peer):
                    self.coordinator = peer
                    self._introduce()
                else:
                    self._send(self.core.greet(peer, now))
            case PeerDown(peer=peer):
                self._links.note(event, now)
                self.core.forget(peer)
                if peer == self.coordinator:
                    self.coordinator = None
            case Received(peer=peer, message=Welcome() as welcome) if peer == self.coordinator:
                self.core.handle(COORDINATOR, welcome, (), now)
            case Received(peer=peer, message=BeatAck() as ack):
                self.core.handle(COORDINATOR, ack, (), now)
                if not ack.known and peer == self.coordinator:
                    self._introduce()
            case Received(message=Shutdown(reason=reason)):
                self.ended = reason
            case Received(peer=peer, message=message, frames=frames):
                sends = self.core.handle(peer, message, frames, now)
                at = self.core.assignment.at
                if self._epoch != at or isinstance(message, Probe):
                    self._epoch = at
                    self._links.need(self.core.peers, now)
                self._send(sends)
                self.store.work_ahead()
                self._look_after_saving()
                if self.core.failed is not None:
                    self.ended = self.core.failed.reason

    def on_tick(self, now: float) -> None:
        """Time passes."""
        self._now = now
        outcome = self._saver.poll()
        if outcome is not None:
            self.store.thaw()
            self._frozen = None
            self._send(self.core.saved(outcome.version, outcome.files, outcome.problem))
        self._look_after_saving()
        self._links.tick(now)
        self._send(self.core.tick(now))

    def close(self) -> None:
        """End what runs in the background."""
        self._saver.close()
        self._crew.close()

    def _introduce(self) -> None:
        self._send([Send(COORDINATOR, self.core.introduce(self.introduction))])

    def _look_after_saving(self) -> None:
        """Begin to write what the core has frozen, and give up what it does not want any longer."""
        if self.store.frozen is not None and self.core.saving.version != self.store.frozen.version:
            self.store.thaw()
        if self.store.frozen is not self._frozen:
            self._saver.give_up()
            self._frozen = self.store.frozen
            if self._frozen is not None:
                self._saver.begin(folder_name(self.core.assignment.incarnation, self._frozen.version), self._frozen)

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            to = self.coordinator if send.to == COORDINATOR else send.to
            if to is None:
                continue  # said again with the next beat
            if send.payload:
                self._reply(to, send.message, cast(Sequence[Part], send.payload))
                continue
            try:
                self.port.send(to, send.message)
            except (PeerUnknownError, PeerLostError):
                self._miss(to)

    def _miss(self, peer: NodeId) -> None:
        """There is no session with `peer`: whatever it is to be told is said again when there is one."""
        self.core.forget(peer)
        self._links.lost(peer, self._now)

    def _reply(self, to: NodeId, message: Message, parts: Sequence[Part]) -> None:
        """Send blocks; they are not written to until the reader has let go of them."""
        with tracing.span("reply", to=to, blocks=len(parts)):
            try:
                delivery = self.port.send(to, message, [part.frame for part in parts])
            except (PeerUnknownError, PeerLostError):
                self._miss(to)
                return
            for buffer in {id(part.buffer): part.buffer for part in parts}.values():
                buffer.lend(delivery)
