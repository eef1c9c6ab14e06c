"""A session between two processes of one host: a unix stream socket for what is said, shared memory for blocks.

There is no I/O thread: what is sent goes into the peer's socket before `send` returns, and what the socket does not
take waits for the loop. A frame in shared memory travels as a reference (see `loans`).
"""

from __future__ import annotations

import array
import contextlib
import os
import socket as sockets
from collections import deque
from collections.abc import Callable, Sequence

from paceline.errors import RefusedFrameError
from paceline.transport import local_records as records
from paceline.transport.base import Delivery, Frame
from paceline.transport.inbox import open_header
from paceline.transport.loans import Borrower, LoanTable, Witness
from paceline.transport.local_out import Outgoing
from paceline.transport.memory import Arena
from paceline.transport.segments import Mapping
from paceline.transport.zmq_loop import Loop, Source
from paceline.transport.zmq_sessions import Sessions
from paceline.types import NodeId
from paceline.wire.handshake import Farewell, decode_control, encode_control

CLOSED = "the connection was closed"

_BUFFER_NBYTES = 64 << 10
_ROOM_NBYTES = 64 << 10
_MAX_FDS = 8
_ANCILLARY_NBYTES = sockets.CMSG_SPACE(_MAX_FDS * 4)
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

    def _sweep(self) -> None:
        for link in self.links:
            link.sweep()
        self._tables = [table for table in self._tables if table.sweep()]

    def _retired(self, number: int) -> None:
        for link in self.links:
            link.retired(number)


class _Body:
    """A message whose frames are still coming in."""

    __slots__ = ("frames", "header", "left")

    def __init__(self, header: bytes, frames: list[Frame], left: deque[Frame]) -> None:
        self.header = header
        self.frames = frames
        self.left = left


class LocalLink:
    """One proven peer at the other end of a unix socket. `on_over` hears why it ended, unless it was ended here."""

    def __init__(
        self, shared: Locals, socket: sockets.socket, witness: Witness, peer: NodeId, on_over: Callable[[str], None]
    ) -> None:
        """Take over `socket`, connected to the process that `witness` watches."""
        self.close_at = float("inf")
        self.peer = peer
        self._shared = shared
        self._socket = socket
        self._on_over = on_over
        self._out = Outgoing(socket, shared.sessions.limits, shared.arena, witness, self._blocked)
        self._source = Source(socket.fileno(), self._read, self._write)
        self._buffer = bytearray(_BUFFER_NBYTES)
        self._start = self._end = 0
        self._prelude: records.Prelude | None = None
        self._body: _Body | None = None
        self._fds: deque[int] = deque()
        self._segments: dict[int, Mapping] = {}
        self._borrower: Borrower | None = None
        self._reads = True
        self._filled = False
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
        self._out.close()
        self._on_over = _ignore
        if self._out.table is not None:
            self._shared.keep(self._out.table)
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)  # a fork may hold the descriptor, too
        self._socket.close()

    def lost(self, reason: str) -> None:
        """The peer is known to be gone: take what it has sent, then end."""
        for _ in range(_LAST_READS):
            if self._closed or not self._reads or not (self._read() or self._filled):
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
        self._filled = False
        if not self._reads:
            if not self._closed and self._at_end():
                self.close()
            return False
        try:
            if self._body is not None:
                self._fill_body(self._body)
            elif self._whole() or (self._fill() and self._whole()):
                self._take()
            return self._another()
        except RefusedFrameError as error:
            self._shared.sessions.counters.refuse(error.rule)
            self._over(f"refused ({error.rule}): {error.detail}", Farewell(error.rule, error.detail[:200]))
        except OSError as error:
            self._over(CLOSED if isinstance(error, ConnectionError) else f"the local link broke: {error}")
        return False

    def _another(self) -> bool:
        return self._reads and self._body is None and self._whole()

    def _over(self, reason: str, farewell: Farewell | None = None) -> None:
        if self._reads:
            if farewell is not None:
                self._out.control(encode_control(farewell))
            on_over = self._on_over
            self.close()
            on_over(reason)

    def _stop_reading(self) -> None:
        if not self._reads:
            return
        self._reads = False
        if self._borrower is not None:
            self._borrower.close()
        self._body = None
        self._segments.clear()
        while self._fds:
            os.close(self._fds.popleft())

    def _at_end(self) -> bool:
        """Whether the peer has closed: nobody will take what waits."""
        try:
            return not self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # ------------------------------------------------------------ bytes

    def _whole(self) -> bool:
        """Whether the buffer holds a record as far as its header."""
        have = self._end - self._start
        if self._prelude is None:
            if have < records.PRELUDE_NBYTES:
                return False
            self._prelude = records.open_prelude(self._buffer, self._start, self._shared.sessions.limits.wire)
        return have >= records.PRELUDE_NBYTES + self._prelude.more_nbytes

    def _fill(self) -> bool:
        """Read what the socket has, into the buffer; False for nothing."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_NBYTES:
                self._buffer = bytearray(_BUFFER_NBYTES)
        if self._end == len(self._buffer):
            self._make_space()
        view = memoryview(self._buffer)[self._end :]
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into([view], _ANCILLARY_NBYTES, sockets.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        if ancillary:
            self._take_descriptors(ancillary)
        if not count:
            raise ConnectionResetError
        self._filled = True
        self._end += count
        return True

    def _make_space(self) -> None:
        """Move what is left to the front; more than it can hold is allocated only as it really comes."""
        left = self._buffer[self._start : self._end]
        if self._start == 0:
            self._buffer = left + bytes(len(left))
        else:
            self._buffer = left + bytes(max(_BUFFER_NBYTES - len(left), _BUFFER_NBYTES // 2))
        self._start, self._end = 0, len(left)

    def _take_descriptors(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == sockets.SOL_SOCKET and kind == sockets.SCM_RIGHTS:
                self._fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
        if len(self._fds) > _MAX_FDS:
            raise RefusedFrameError("segment", f"{len(self._fds)} descriptors that nothing announces")

    def _take(self) -> None:
        """The record at the start of the buffer, which is there as far as its header."""
        prelude = self._prelude
        assert prelude is not None
        self._prelude = None
        begin = self._start + records.PRELUDE_NBYTES
        self._start = begin + prelude.more_nbytes
        kind = prelude.kind
        if kind == records.MESSAGE:
            self._take_message(prelude, begin)
        elif kind == records.CONTROL:
            self._take_control(bytes(memoryview(self._buffer)[begin : self._start]))
        elif kind == records.DROP:
            self._segments.pop(prelude.number, None)
        else:
            self._take_memory(prelude)

    def _take_message(self, prelude: records.Prelude, begin: int) -> None:
        view = memoryview(self._buffer)
        header = view[self._start - prelude.header_nbytes : self._start]
        if not prelude.rows:
            self._deliver(header, ())
            return
        rows = records.open_rows(view[begin : self._start - prelude.header_nbytes], self._shared.sessions.limits.wire)
        frames = self._frames(prelude, rows)
        left = deque(frame for row, frame in zip(rows, frames, strict=True) if row[0] == records.INLINE and row[2])
        if not left:
            self._deliver(header, frames)
            return
        self._body = _Body(bytes(header), frames, left)
        while left and self._start < self._end:  # what was read ahead
            count = min(left[0].nbytes, self._end - self._start)
            left[0][:count] = view[self._start : self._start + count]
            self._start += count
            self._received(left, count)
        if not left:
            self._deliver_body(self._body)

    def _frames(self, prelude: records.Prelude, rows: Sequence[records.Row]) -> list[Frame]:
        """Views of what was lent, and room for what is coming."""
        places = []
        find = self._segments.get
        for number, offset, nbytes in rows:
            if number != records.INLINE:
                mapping = find(number)
                if mapping is None:
                    raise RefusedFrameError("reference", f"segment {number} was not announced")
                if offset + nbytes > mapping.nbytes:
                    raise RefusedFrameError("reference", f"{nbytes} bytes at {offset} of {mapping.nbytes}")
                places.append((mapping, offset, nbytes))
        borrowed: list[Frame] = []
        if places:
            if self._borrower is None:
                raise RefusedFrameError("reference", "no table was announced")
            borrowed = self._borrower.borrow(prelude.slot, prelude.number, places)
            if len(borrowed) == len(rows):
                return borrowed
        lent = iter(borrowed)
        return [self._room(nbytes) if number == records.INLINE else next(lent) for number, _, nbytes in rows]

    def _room(self, nbytes: int) -> Frame:
        return self._shared.arena.raw_room(nbytes) if nbytes >= _ROOM_NBYTES else memoryview(bytearray(nbytes))

    def _fill_body(self, body: _Body) -> None:
        """Read what the socket has into the frames themselves."""
        try:
            count = self._socket.recv_into(body.left[0])
        except BlockingIOError:
            return
        if not count:
            raise ConnectionResetError
        self._filled = True
        self._received(body.left, count)
        if not body.left:
            self._deliver_body(body)

    @staticmethod
    def _received(left: deque[Frame], count: int) -> None:
        if count == left[0].nbytes:
            left.popleft()
        else:
            left[0] = left[0][count:]

    def _deliver_body(self, body: _Body) -> None:
        self._body = None
        self._deliver(body.header, body.frames)

    def _deliver(self, header: bytes | memoryview, frames: Sequence[Frame]) -> None:
        sessions = self._shared.sessions
        message = open_header(header, sessions.limits.wire, sessions.counters)
        if message is not None:
            sessions.received(self.peer, message, tuple(frames))

    def _take_control(self, frame: bytes) -> None:
        control = decode_control(frame)
        if not isinstance(control, Farewell):
            raise RefusedFrameError("control", f"{type(control).__name__} within a session")
        self._over(f"ended by the peer ({control.rule}): {control.detail}")

    def _take_memory(self, prelude: records.Prelude) -> None:
        if not self._fds:
            raise RefusedFrameError("segment", "no descriptor came with it")
        fd = self._fds.popleft()
        try:
            if prelude.kind == records.TABLE:
                if self._borrower is not None:
                    raise RefusedFrameError("segment", "a second table")
                self._borrower = Borrower(fd, prelude.nbytes)
            elif prelude.number in self._segments or len(self._segments) >= records.MAX_SEGMENTS:
                raise RefusedFrameError("segment", f"number {prelude.number} again, or too many")
            else:
                self._segments[prelude.number] = Mapping(fd, prelude.nbytes)
        finally:
            os.close(fd)
