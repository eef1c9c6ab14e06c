"""A server process: the core, a port, and a blocking poll."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.effects import Send
from paceline.core.server import ServerCore
from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Register, Shutdown, Welcome
from paceline.server.dense import Buffer, DenseStore
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, NodeId


class ServerService:
    """Feeds events to the core and sends what it returns. One per port; driven by `on_event` and `on_tick`."""

    def __init__(self, port: Port, introduction: Register) -> None:
        self.port = port
        self.introduction = introduction
        self.store = DenseStore()
        self.core = ServerCore(port.node, self.store)
        self.coordinator: NodeId | None = None
        self.ended: str | None = None

    def on_event(self, event: Event, now: float) -> None:
        """One event of the port."""
        match event:
            case PeerUp(peer=peer, address=address):
                if address is not None:  # the only peer a server connects to is the coordinator
                    self.coordinator = peer
                    self._send([Send(COORDINATOR, self.introduction)])
            case PeerDown(peer=peer):
                self.core.forget(peer)
                if peer == self.coordinator:
                    self.coordinator = None
            case Received(message=Welcome(heartbeat_s=heartbeat_s)):
                self.core.heartbeat_s = heartbeat_s
            case Received(message=Shutdown(reason=reason)):
                self.ended = reason
            case Received(peer=peer, message=message, frames=frames):
                self._send(self.core.handle(peer, message, frames, now))
                if self.core.failed is not None:
                    self.ended = self.core.failed.reason

    def on_tick(self, now: float) -> None:
        """Time passes."""
        self._send(self.core.tick(now))

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            to = self.coordinator if send.to == COORDINATOR else send.to
            if to is None:
                continue  # said again with the next beat
            buffers = [b for b in send.payload if isinstance(b, Buffer)]
            try:
                delivery = self.port.send(to, send.message, [b.frame for b in buffers])
            except (PeerUnknownError, PeerLostError):
                self.core.forget(to)
                continue
            for buffer in buffers:
                buffer.lend(delivery)
