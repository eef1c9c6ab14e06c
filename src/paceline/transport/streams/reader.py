"""The reading direction of a stream: reads bytes, cuts them into records, and checks and delivers the messages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.transport.admission import open_header
from paceline.transport.base import Frame
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import Borrower
from paceline.transport.memory.shared_files import Mapping
from paceline.transport.sessions import Sessions
from paceline.transport.streams import records
from paceline.transport.streams.channel import MAX_FDS, Channel
from paceline.types import NodeId
from paceline.wire.handshake import Farewell, decode_control

_BUFFER_NBYTES = 64 << 10
_ARENA_NBYTES = 64 << 10  # smaller frames are plain bytearrays
_AT_ONCE_NBYTES = 1 << 20  # the other sockets of the port wait while so many bytes of one frame are read


class _Body:
    """A message whose frames have not arrived completely; `left` are the parts of frames that must still be read."""

    __slots__ = ("frames", "header", "left")

    def __init__(self, header: bytes, frames: list[Frame], left: deque[Frame]) -> None:
        self.header = header
        self.frames = frames
        self.left = left


class StreamReader:
    """Reads records and passes their messages to the sessions. `farewell` is set once the peer has sent one."""

    def __init__(self, channel: Channel, sessions: Sessions, arena: Arena, peer: NodeId) -> None:
        self.farewell: Farewell | None = None
        self.filled = False
        """Whether the last `read` took bytes from the socket or the buffer."""
        self._channel = channel
        self._sessions = sessions
        self._arena = arena
        self._peer = peer
        self._buffer = bytearray(_BUFFER_NBYTES)
        self._start = self._end = 0
        self._prelude: records.Prelude | None = None
        self._record_nbytes = records.PRELUDE_NBYTES  # of the next record, as far as known, up to the end of its header
        self._body: _Body | None = None
        self._fds: deque[int] = deque()
        self._shared_files: dict[int, Mapping] = {}
        self._borrower: Borrower | None = None
        self._closed = False

    def read(self) -> bool:
        """Read one record, if one has come; True if the buffer already holds another one.

        Raises:
            RefusedFrameError: the record breaks a rule.
            ConnectionError: the peer has closed the link.
            OSError: the link broke, or the peer's memory cannot be mapped.
        """
        self.filled = False
        if self._body is not None:
            self._fill_body(self._body)
        elif self._whole() or (self._fill() and self._whole()):
            self.filled = True
            self._take()
        return self._another()

    def ended(self) -> bool:
        """Whether the peer has closed its end. Drops bytes that the peer sent: call this only after `close`."""
        try:
            return not self._channel.read_frame(memoryview(self._buffer))
        except BlockingIOError:
            return False
        except (OSError, RefusedFrameError):
            return True

    def close(self) -> None:
        """Stop reading. Received frames stay valid. Idempotent."""
        self._closed = True
        if self._borrower is not None:
            self._borrower.close()
            self._borrower = None
        self._body = None
        self._shared_files.clear()
        while self._fds:
            os.close(self._fds.popleft())

    # ------------------------------------------------------------ bytes

    def _another(self) -> bool:
        if self._closed:
            return False
        return self._channel.buffered or (self._body is None and self._whole())

    def _whole(self) -> bool:
        """Whether the buffer holds the next record up to the end of its header; bytes of frames may be missing."""
        have = self._end - self._start
        if have < self._record_nbytes:
            return False
        if self._prelude is None:
            limits = self._sessions.limits.wire
            self._prelude, self._record_nbytes = records.open_prelude(self._buffer, self._start, limits)
            return have >= self._record_nbytes
        return True

    def _fill(self) -> bool:
        """Read from the socket into the buffer; False if the socket has nothing."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_NBYTES:
                self._buffer = bytearray(_BUFFER_NBYTES)
        if self._end == len(self._buffer):
            self._make_space()
        view = memoryview(self._buffer)[self._end :]
        try:
            count, fds = self._channel.read_head(view)
        except BlockingIOError:
            return False
        if fds:
            self._take_descriptors(fds)
        if not count:
            raise ConnectionResetError
        self.filled = True
        self._end += count
        return True

    def _make_space(self) -> None:
        """Move the unread bytes to the front, or double a full buffer.

        So the buffer grows with the bytes that have come, not with the size that a peer claims.
        """
        left = self._buffer[self._start : self._end]
        if self._start == 0:
            self._buffer = left + bytes(len(left))
        else:
            self._buffer = left + bytes(max(_BUFFER_NBYTES - len(left), _BUFFER_NBYTES // 2))
        self._start, self._end = 0, len(left)

    def _take_descriptors(self, fds: Sequence[int]) -> None:
        self._fds.extend(fds)
        if len(self._fds) > MAX_FDS:
            raise RefusedFrameError(
                "shared-file", f"the peer sent {len(self._fds)} descriptors without their records, at most {MAX_FDS}"
            )

    def _take(self) -> None:
        """Handle the record at the start of the buffer, which has arrived up to the end of its header."""
        prelude = self._prelude
        assert prelude is not None
        begin = self._start
        self._start = begin + self._record_nbytes
        self._prelude, self._record_nbytes = None, records.PRELUDE_NBYTES
        kind, header_nbytes, rows, _, number, _ = prelude
        if kind == records.MESSAGE:
            header = memoryview(self._buffer)[self._start - header_nbytes : self._start]
            if rows:
                self._take_frames(prelude, header, begin + records.PRELUDE_NBYTES)
            else:
                self._deliver(header, ())
        elif kind == records.CONTROL:
            self._take_control(bytes(self._buffer[self._start - header_nbytes : self._start]))
        elif kind == records.DROP:
            self._shared_files.pop(number, None)
        else:
            self._take_memory(prelude)

    def _take_frames(self, prelude: records.Prelude, header: memoryview, begin: int) -> None:
        """Handle a message with frames, whose rows begin at offset `begin` of the buffer."""
        view = memoryview(self._buffer)
        rows = records.open_rows(view[begin : self._start - prelude[1]], self._sessions.limits.wire)
        frames, inline = self._frames(prelude, rows)
        if not inline:
            self._deliver(header, frames)
            return
        left = deque(frame for row, frame in zip(rows, frames, strict=True) if row[0] == records.INLINE and row[2])
        self._body = _Body(bytes(header), frames, left)
        while left and self._start < self._end:  # the buffer has some of the bytes already
            count = min(left[0].nbytes, self._end - self._start)
            left[0][:count] = view[self._start : self._start + count]
            self._start += count
            self._received(left, count)
        if not left:
            self._deliver_body(self._body)

    def _frames(self, prelude: records.Prelude, rows: Sequence[records.Row]) -> tuple[list[Frame], bool]:
        """A frame for each row: a view of a lent frame, or new memory for a frame whose bytes follow the header.

        Also returns whether the bytes of some frame follow the header.
        """
        places = []
        find = self._shared_files.get
        for number, offset, nbytes in rows:
            if number != records.INLINE:
                mapping = find(number)
                if mapping is None:
                    raise RefusedFrameError(
                        "reference", f"the message names shared file {number}, which the peer has not announced"
                    )
                if offset + nbytes > mapping.nbytes:
                    raise RefusedFrameError(
                        "reference", f"{nbytes} bytes at offset {offset} exceed a shared file of {mapping.nbytes} bytes"
                    )
                places.append((mapping, offset, nbytes))
        borrowed: list[Frame] = []
        if places:
            if self._borrower is None:
                raise RefusedFrameError("reference", "the peer has lent a frame before it announced its table of loans")
            borrowed = self._borrower.borrow(prelude[3], prelude[4], places)
            if len(borrowed) == len(rows):
                return borrowed, False
        lent = iter(borrowed)
        return [self._allocate(n) if number == records.INLINE else next(lent) for number, _, n in rows], True

    def _allocate(self, nbytes: int) -> Frame:
        return self._arena.allocate_raw(nbytes) if nbytes >= _ARENA_NBYTES else memoryview(bytearray(nbytes))

    def _fill_body(self, body: _Body) -> None:
        """Read into the frames of `body`, without the buffer; deliver the message if it is complete."""
        left, read = body.left, 0
        while left and read < _AT_ONCE_NBYTES:
            try:
                count = self._channel.read_frame(left[0])
            except BlockingIOError:
                return
            if not count:
                raise ConnectionResetError
            self.filled = True
            read += count
            self._received(left, count)
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
        sessions = self._sessions
        message = open_header(header, sessions.limits.wire, sessions.counters)
        if message is not None:
            sessions.received(self._peer, message, frames)

    def _take_control(self, frame: bytes) -> None:
        control = decode_control(frame)
        if not isinstance(control, Farewell):
            raise RefusedFrameError(
                "control", f"{type(control).__name__} came within a session, where only Farewell may come"
            )
        self.farewell = control

    def _take_memory(self, prelude: records.Prelude) -> None:
        if not self._fds:
            raise RefusedFrameError("shared-file", "a record that announces shared memory came without a descriptor")
        kind, _, _, _, number, nbytes = prelude
        fd = self._fds.popleft()
        try:
            if kind == records.TABLE:
                if self._borrower is not None:
                    raise RefusedFrameError("shared-file", "the peer announced a second table of loans")
                self._borrower = Borrower(fd, nbytes)
            elif number in self._shared_files or len(self._shared_files) >= records.MAX_SHARED_FILES:
                detail = f"shared file {number} was announced twice, or is above the {records.MAX_SHARED_FILES}"
                raise RefusedFrameError("shared-file", f"{detail} that a peer may announce")
            else:
                self._shared_files[number] = Mapping(fd, nbytes)
        finally:
            os.close(fd)
