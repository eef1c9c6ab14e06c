"""A session on a stream of records. On one host, headers go by a unix socket and frames by shared memory.

There is no I/O thread: `send` writes to the channel before it returns, and the loop later writes the bytes that the
channel did not accept. A frame in shared memory is sent as a reference (see `loans`). Between hosts, everything goes by
an encrypted TCP connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.errors import RefusedFrameError
from paceline.transport.base import Delivery, Frame
from paceline.transport.loop import Loop, Source
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import LoanTable, PeerProcess
from paceline.transport.sessions import Sessions
from paceline.transport.streams.channel import Channel
from paceline.transport.streams.reader import StreamReader
from paceline.transport.streams.writer import StreamWriter
from paceline.types import NodeId
from paceline.wire.handshake import Farewell, encode_control

CLOSED = "the connection was closed"

_LATER_S = 0.05  # a message that may wait for another one waits at most so long
_LAST_READS = 10_000  # at most this many reads of the last messages of a peer that is gone
_LAST_BYTES_S = 0.3  # the last bytes of a peer on another host may come so much later than the news that it is gone
_ASK_S = 0.002  # no event tells that a peer's system has all bytes, so a port that closes asks again after this time


def _ignore(reason: str) -> None:
    """Do nothing: a link that this side has closed does not report its end."""


class StreamLinks:
    """All streams of one port, and the memory of their frames. Loans to a peer may outlive the peer's session."""

    def __init__(self, loop: Loop, sessions: Sessions, *, share: bool = True) -> None:
        """With `share`, peers of this host can map the memory."""
        self.loop = loop
        self.sessions = sessions
        self.arena = Arena(share=share, before_growing=self._sweep, on_retired=self._retired)
        self.links: set[StreamLink] = set()
        self._tables: list[LoanTable] = []

    def add(self, link: StreamLink) -> None:
        """Add a new link. A peer of this host answers soon, so the loop spins for its answers before it sleeps."""
        self.links.add(link)
        if link.near:
            self.loop.peer_is_near()

    def remove(self, link: StreamLink) -> None:
        """Remove a closed link."""
        self.links.discard(link)
        if link.near:
            self.loop.near_peer_is_gone()

    def keep(self, table: LoanTable) -> None:
        """Keep the loans of an ended session until the peer has dropped their frames."""
        if table.sweep():
            self._tables.append(table)

    def tick(self, now: float) -> None:
        """Close the links whose time to send their last messages is over, and ask for the next tick."""
        for link in list(self.links):
            link.send_waiting()
            if link.close_at <= now:
                link.time_is_over()
        for link in self.links:
            self.loop.wake_at(link.close_at)

    def close(self) -> None:
        """Close every link. Their last messages may take `linger_s` in all."""
        for link in self.links:
            link.send_waiting()
        until = self.loop.now() + self.sessions.limits.linger_s
        while self.loop.now() < until and any(not link.settled for link in self.links):
            self.loop.wait(min(_ASK_S, until - self.loop.now()))
            while self.loop.read_one():
                pass
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


class StreamLink:
    """One session on a channel. The link calls `on_over` with the reason when the session ends by itself.

    It does not call `on_over` when this side closes the link.
    """

    def __init__(
        self,
        links: StreamLinks,
        channel: Channel,
        process: PeerProcess | None,
        peer: NodeId,
        on_over: Callable[[str], None],
    ) -> None:
        """Take over `channel`, which is connected to the proven `peer`; `process` is its process, on this host only."""
        self.close_at = float("inf")
        self.unusable = False
        """Whether the link ended because one side cannot map the other's memory: the next session uses TCP."""
        self.near = channel.near
        self._links = links
        self._channel = channel
        self._lost: str | None = None
        self._on_over = on_over
        self._out = StreamWriter(channel, links.sessions.limits, links.arena, process, self._blocked)
        self._source = Source(channel.fileno(), self._read, self._write)
        self._in = StreamReader(channel, links.sessions, links.arena, peer)
        self._reads = True
        self._closed = False
        links.add(self)
        links.loop.watch([self._source])

    # ------------------------------------------------------------ the session's side

    def send(self, header: bytes, frames: Sequence[Frame], later: bool = False) -> Delivery:
        """See `Link.send`. Only messages to a peer of this host wait."""
        if later and self.near:
            loop = self._links.loop
            loop.wake_at(loop.now() + _LATER_S)
            return self._out.send(header, frames, later=True)
        return self._out.send(header, frames)

    def send_waiting(self) -> None:
        """Send the messages that wait for another one."""
        self._out.flush()

    def finish(self, linger_s: float, farewell: Farewell | None = None) -> None:
        """Stop reading, send `farewell`, and close once everything is sent, after `linger_s` at the latest."""
        if self._closed:
            return
        self._stop_reading()
        self._out.flush()
        if farewell is not None:
            self._out.control(encode_control(farewell))
        self._close_once_sent()
        if not self._closed:
            self.close_at = self._links.loop.now() + linger_s
            self._links.loop.wake_at(self.close_at)

    def close(self) -> None:
        """Close now. Received frames stay valid, and open loans end when the peer drops their frames. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        self._links.remove(self)
        self._links.loop.unwatch([self._source])
        self._source.forget()
        self._on_over = _ignore
        table = self._out.close()
        if table is not None:
            self._links.keep(table)
        self._channel.shutdown()  # `close` alone is not enough if a fork has the descriptor too
        self._channel.close()

    def lost(self, reason: str) -> None:
        """Read the last messages of the peer, which is known to be gone, then end the session.

        The last bytes of a peer on another host may still be on their way. Their end ends the session, or a time in
        which none came.
        """
        if self._lost is not None:
            return
        self._read_all()
        if self.near or not self._reads:
            self._over(reason)
        else:
            self._lost = reason
            self._await_bytes()

    def time_is_over(self) -> None:
        """End the session if its peer is lost; otherwise close, although some bytes were not written.

        Bytes of a lost peer that came while the role was busy are read first, and give it more time.
        """
        if self._lost is not None:
            was = self.close_at
            self._read_all()
            if self._closed or self.close_at != was:
                return
            self._over(self._lost)
        self.close()

    @property
    def flushed(self) -> bool:
        """Whether all records were written to the socket."""
        return self._out.empty

    @property
    def settled(self) -> bool:
        """Whether a close loses nothing that was sent."""
        return self._out.empty and self._channel.settled

    def sweep(self) -> None:
        """Release the frames of loans whose frames the peer has dropped."""
        self._out.sweep()

    def retired(self, number: int) -> None:
        """Tell the peer to unmap region `number`, which this process returns to the system."""
        self._out.retired(number)

    # ------------------------------------------------------------ the loop's side

    def _blocked(self, blocked: bool) -> None:
        self._links.loop.want_write(self._source, blocked)

    def _write(self) -> None:
        self._out.flush()
        if not self._reads:
            self._close_once_sent()

    def _close_once_sent(self) -> None:
        """Close if everything was sent. If the peer does not have it yet, let the peer read it and close first."""
        if self._out.empty:
            if self._channel.settled:
                self.close()
            else:
                self._channel.end_writing()

    def _read_all(self) -> None:
        for _ in range(_LAST_READS):
            if not self._reads or not (self._read() or self._in.filled):
                break

    def _await_bytes(self) -> None:
        self.close_at = self._links.loop.now() + _LAST_BYTES_S
        self._links.loop.wake_at(self.close_at)

    def _read(self) -> bool:
        """Read one record, if one has come; True if the buffer already holds another one."""
        if not self._reads:
            if not self._closed and self._in.ended():
                self._out.peer_has_closed()
                self.close()
            return False
        try:
            more = self._in.read()
        except RefusedFrameError as error:
            self._links.sessions.counters.refuse(error.rule)
            self.unusable = error.rule == "shared-file"
            rule = "lane" if self.unusable else error.rule
            self._out.control(encode_control(Farewell(rule, error.detail[:200])))
            self._over(f"refused ({error.rule}): {error.detail}")
            return False
        except ConnectionError:
            self._out.peer_has_closed()
            self._over(CLOSED)
            return False
        except OSError as error:  # the peer's memory cannot be mapped, or the network is cut
            self.unusable = self.near
            self._out.control(encode_control(Farewell("lane", str(error)[:200])))
            self._over(f"the link broke: {error}")
            return False
        if self._in.farewell is not None:
            self.unusable = self._in.farewell.rule == "lane"
            self._over(f"ended by the peer ({self._in.farewell.rule}): {self._in.farewell.detail}")
            return False
        if self._lost is not None and self._in.filled:
            self._await_bytes()
        return more

    def _over(self, reason: str) -> None:
        if self._reads:
            on_over = self._on_over
            self.close()
            on_over(reason)

    def _stop_reading(self) -> None:
        self._reads = False
        self._in.close()
