"""A session between two processes of one host: a unix stream socket for what is said, shared memory for blocks.

There is no I/O thread: what is sent goes into the peer's socket before `send` returns, and what the socket does not
take waits for the loop. A frame in shared memory travels as a reference (see `loans`).
"""

from __future__ import annotations

import contextlib
import socket as sockets
from collections.abc import Callable, Sequence

from paceline.errors import RefusedFrameError
from paceline.transport.base import Delivery, Frame
from paceline.transport.local.reader import Incoming
from paceline.transport.local.writer import Outgoing
from paceline.transport.loop import Loop, Source
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import LoanTable, Witness
from paceline.transport.sessions import Sessions
from paceline.types import NodeId
from paceline.wire.handshake import Farewell, encode_control

CLOSED = "the connection was closed"

_LAST_READS = 10_000


def _ignore(reason: str) -> None:
    """A link that was ended here tells nobody."""


class Locals:
    """What the local links of one port share: its memory, and the loans that outlive their sessions."""

    def __init__(self, loop: Loop, sessions: Sessions, arena: Arena) -> None:
        self.loop = loop
        self.sessions = sessions
        self.arena = arena
        self.links: set[LocalLink] = set()
        self._tables: list[LoanTable] = []
        arena.before_growing = self._sweep
        arena.on_retired = self._retired

    def keep(self, table: LoanTable) -> None:
        """Watch the loans of a session that is over, as long as there are any."""
        if table.sweep():
            self._tables.append(table)

    def tick(self, now: float) -> None:
        """Close links that have lingered long enough, and ask for the next tick."""
        for link in [link for link in self.links if link.close_at <= now]:
            link.close()
        for link in self.links:
            self.loop.wake_at(link.close_at)

    def close(self) -> None:
        """Close every link, giving the last messages a little time."""
        until = self.loop.now() + self.sessions.limits.linger_s
        while self.loop.now() < until and any(not link.flushed for link in self.links):
            self.loop.wait(until - self.loop.now())
        for link in list(self.links):
            link.close()
        self._tables.clear()

    def _sweep(self) -> None:
        for link in self.links:
            link.sweep()
        self._tables = [table for table in self._tables if table.sweep()]

    def _retired(self, number: int) -> None:
        for link in self.links:
            link.retired(number)


class LocalLink:
    """One proven peer at the other end of a unix socket. `on_over` hears why it ended, unless it was ended here."""

    def __init__(
        self, shared: Locals, socket: sockets.socket, witness: Witness, peer: NodeId, on_over: Callable[[str], None]
    ) -> None:
        """Take over `socket`, connected to the process that `witness` watches."""
        self.close_at = float("inf")
        self.unusable = False
        """Whether it ended because one side cannot use the other's memory: the next session had better go by TCP."""
        self._shared = shared
        self._socket = socket
        self._on_over = on_over
        self._out = Outgoing(socket, shared.sessions.limits, shared.arena, witness, self._blocked)
        self._source = Source(socket.fileno(), self._read, self._write)
        self._in = Incoming(socket, shared.sessions, shared.arena, peer)
        self._reads = True
        self._closed = False
        shared.links.add(self)
        shared.loop.spins += 1
        shared.loop.watch([self._source])

    # ------------------------------------------------------------ the session's side

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """As `Link.send`."""
        return self._out.send(header, frames)

    def finish(self, linger_s: float, farewell: Farewell | None = None) -> None:
        """Read no more, say farewell, and close when everything is sent, at the latest after `linger_s`."""
        if self._closed:
            return
        self._stop_reading()
        if farewell is not None:
            self._out.control(encode_control(farewell))
        if self._out.empty:
            self.close()
        else:
            self.close_at = self._shared.loop.now() + linger_s
            self._shared.loop.wake_at(self.close_at)

    def close(self) -> None:
        """Close now. Frames that were received stay valid, and loans end when the peer lets go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        self._shared.links.discard(self)
        self._shared.loop.spins -= 1
        self._shared.loop.unwatch([self._source])
        self._source.forget()
        self._on_over = _ignore
        table = self._out.close()
        if table is not None:
            self._shared.keep(table)
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)  # a fork may hold the descriptor, too
        self._socket.close()

    def lost(self, reason: str) -> None:
        """The peer is known to be gone: take what it has sent, then end."""
        for _ in range(_LAST_READS):
            if not self._reads or not (self._read() or self._in.filled):
                break
        self._over(reason)

    @property
    def flushed(self) -> bool:
        """Whether nothing waits to be sent."""
        return self._out.empty

    def sweep(self) -> None:
        """Let go of what the peer has let go of."""
        if self._out.table is not None:
            self._out.table.sweep()

    def retired(self, number: int) -> None:
        """A segment of this process is no more."""
        self._out.retired(number)

    # ------------------------------------------------------------ the loop's side

    def _blocked(self, blocked: bool) -> None:
        self._shared.loop.want_write(self._source, blocked)

    def _write(self) -> None:
        self._out.flush()
        if self._out.empty and not self._reads:
            self.close()

    def _read(self) -> bool:
        """Take one record; True when another is known to be there."""
        if not self._reads:
            if not self._closed and self._in.ended():
                self._out.deserted()
                self.close()
            return False
        try:
            more = self._in.read()
        except RefusedFrameError as error:
            self._shared.sessions.counters.refuse(error.rule)
            self.unusable = error.rule == "segment"
            rule = "lane" if self.unusable else error.rule
            self._out.control(encode_control(Farewell(rule, error.detail[:200])))
            self._over(f"refused ({error.rule}): {error.detail}")
            return False
        except ConnectionError:
            self._out.deserted()
            self._over(CLOSED)
            return False
        except OSError as error:  # a peer's memory cannot be mapped
            self.unusable = True
            self._out.control(encode_control(Farewell("lane", str(error)[:200])))
            self._over(f"the local link broke: {error}")
            return False
        if self._in.farewell is not None:
            self.unusable = self._in.farewell.rule == "lane"
            self._over(f"ended by the peer ({self._in.farewell.rule}): {self._in.farewell.detail}")
            return False
        return more

    def _over(self, reason: str) -> None:
        if self._reads:
            on_over = self._on_over
            self.close()
            on_over(reason)

    def _stop_reading(self) -> None:
        self._reads = False
        self._in.close()
