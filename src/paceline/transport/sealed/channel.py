"""A TCP connection that seals what it sends and opens what it receives (see `paceline.wire.seal`).

Content is sealed when the connection accepts it, into a buffer for one chunk, and opened straight into the place of its
frame. So a message costs no memory of its own size, and no copy but the sealing. A channel takes its buffers from those
of the port, and gives them back when nothing waits in them: an idle connection has none.
"""

from __future__ import annotations

import socket as sockets
from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.transport.streams.tcp import TcpChannel
from paceline.wire.seal import CHUNK_NBYTES, MAX_CHUNK_NBYTES, PREFIX_NBYTES, TAG_NBYTES, Opener, Sealer

_ALONE_NBYTES = 16 << 10  # smaller views are gathered into one chunk
_IOV_MAX = 64
# The system looks for a peer that is silent: about as often as ZeroMQ does on the connection beside this one. One more
# probe than there, because a lost probe is not sent again.
_IDLE_S, _BETWEEN_S, _PROBES = 1, 1, 3
_KEPT = 4


class Buffers:
    """Buffers of one size that the channels of a port use in turn. Keeps a few that are not in use."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """A buffer for one chunk and the next prefix, with any content."""
        return self._free.pop() if self._free else memoryview(bytearray(MAX_CHUNK_NBYTES + PREFIX_NBYTES))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back."""
        if len(self._free) < _KEPT:
            self._free.append(buffer)


class SealedChannel(TcpChannel):
    """A `Channel` over encrypted TCP.

    With `clear_blocks`, frames travel as they are, and only the heads of records are sealed.
    """

    def __init__(
        self, socket: sockets.socket, sending: bytes, receiving: bytes, buffers: Buffers, *, clear_blocks: bool = False
    ) -> None:
        """Take over `socket`; `sending` and `receiving` are the keys of the two directions."""
        super().__init__(socket)
        self._clear_blocks = clear_blocks
        self._out = _Sending(socket, Sealer(sending), buffers)
        self._in = _Receiving(socket, Opener(receiving, clear_blocks=clear_blocks), buffers)
        # The encrypted ZeroMQ connection beside this one notices a cut network. This is for a cut of this one alone.
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPIDLE, _IDLE_S)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPINTVL, _BETWEEN_S)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPCNT, _PROBES)

    def write(self, views: Sequence[memoryview], head_nbytes: int, fd: int = -1) -> int:
        """See `Channel.write`. No descriptor can be sent to another host."""
        assert fd < 0
        if self._clear_blocks:
            return self._out.write_sealed(views[:1]) if head_nbytes else self._out.write_clear(views)
        return self._out.write_sealed(views)

    def write_record(self, record: bytes) -> int:
        """See `Channel.write_record`."""
        return self.write([memoryview(record)], len(record))

    def read_head(self, view: memoryview) -> tuple[int, list[int]]:
        """See `Channel.read_head`."""
        return self._in.read(view, frame=False), []

    def read_frame(self, view: memoryview) -> int:
        """See `Channel.read_frame`."""
        return self._in.read(view, frame=True)

    @property
    def buffered(self) -> bool:
        """See `Channel.buffered`."""
        return self._in.buffered


class _Sending:
    """The sending direction. A chunk that the socket did not accept whole waits here; its content counts as unsent."""

    __slots__ = ("_buffer", "_buffers", "_clear_left", "_content_nbytes", "_sealer", "_socket", "_waiting")

    def __init__(self, socket: sockets.socket, sealer: Sealer, buffers: Buffers) -> None:
        self._socket = socket
        self._sealer = sealer
        self._buffers = buffers
        self._buffer: memoryview | None = None
        self._waiting = memoryview(b"")
        self._content_nbytes = 0
        self._clear_left = 0

    def write_sealed(self, views: Sequence[memoryview]) -> int:
        """Seal and send the first bytes of `views`; returns their number."""
        if not self._waiting:
            content = _content(views)
            self._buffer = self._buffers.take()
            size = self._sealer.seal_into(content, self._buffer)
            self._waiting = self._buffer[:size]
            self._content_nbytes = content.nbytes
        self._flush()
        assert self._buffer is not None
        self._buffers.give(self._buffer)
        self._buffer = None
        return self._content_nbytes

    def write_clear(self, views: Sequence[memoryview]) -> int:
        """Send the first bytes of `views` as they are; returns their number."""
        views = views[:_IOV_MAX]
        if not self._clear_left:
            self._clear_left = sum(view.nbytes for view in views)
            self._waiting = memoryview(self._sealer.clear_prefix(self._clear_left))
        prefix_nbytes = self._waiting.nbytes
        sent = self._socket.sendmsg([self._waiting, *_first(views, self._clear_left)])
        self._waiting = self._waiting[sent:]
        if sent <= prefix_nbytes:
            raise BlockingIOError
        self._clear_left -= sent - prefix_nbytes
        return sent - prefix_nbytes

    def _flush(self) -> None:
        """Send the chunk that waits."""
        while self._waiting:
            self._waiting = self._waiting[self._socket.send(self._waiting) :]


def _content(views: Sequence[memoryview]) -> memoryview:
    """The content of the next chunk: a part of the first view, or several small views in one."""
    first = views[0]
    if first.nbytes >= _ALONE_NBYTES or len(views) == 1:
        return first[:CHUNK_NBYTES]
    gathered: list[memoryview] = []
    nbytes = 0
    for view in views:
        nbytes += view.nbytes
        if gathered and (view.nbytes >= _ALONE_NBYTES or nbytes > CHUNK_NBYTES // 2):
            break
        gathered.append(view)
    return memoryview(b"".join(gathered))


def _first(views: Sequence[memoryview], nbytes: int) -> list[memoryview]:
    """The views that hold the first `nbytes` bytes of `views`."""
    found = []
    for view in views:
        if view.nbytes >= nbytes:
            found.append(view[:nbytes])
            break
        found.append(view)
        nbytes -= view.nbytes
    return found


class _Receiving:
    """The receiving direction: received bytes, and the content of a chunk for which the reader had too little space."""

    __slots__ = ("_buffers", "_clear_left", "_content", "_end", "_opener", "_received", "_socket", "_start")

    def __init__(self, socket: sockets.socket, opener: Opener, buffers: Buffers) -> None:
        self._socket = socket
        self._opener = opener
        self._buffers = buffers
        self._received: memoryview | None = None
        self._start = self._end = 0
        self._content = memoryview(b"")
        self._clear_left = 0

    @property
    def buffered(self) -> bool:
        """See `Channel.buffered`."""
        if self._content:
            return True
        return self._received is not None and (bool(self._clear_left) or self._whole(self._received))

    def read(self, view: memoryview, *, frame: bool) -> int:
        """Read into `view`, which belongs to a frame or to the head of a record; returns the number of bytes."""
        while not self._content and not self._clear_left:
            if self._received is not None and self._whole(self._received):
                count = self._open(self._received, view)
                if count:
                    return count
            elif not self._receive():
                return 0
        if self._clear_left:
            if not frame:
                raise RefusedFrameError("seal", "the head of a record came unsealed")
            return self._read_clear(view)
        count = min(view.nbytes, self._content.nbytes)
        view[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _open(self, received: memoryview, view: memoryview) -> int:
        """Open the next chunk into `view`, and return its size; 0 if it is unsealed, or too large for `view`."""
        sealed, nbytes = self._opener.open_prefix(received[self._start :])
        if not sealed:
            self._opener.passed()
            self._clear_left = nbytes
            self._taken(PREFIX_NBYTES)
            return 0
        size = PREFIX_NBYTES + nbytes + TAG_NBYTES
        chunk = received[self._start : self._start + size]
        if nbytes <= view.nbytes:
            self._opener.open_into(chunk, view[:nbytes])
            self._taken(size)
            return nbytes
        content = memoryview(bytearray(nbytes))
        self._opener.open_into(chunk, content)
        self._content = content
        self._taken(size)
        return 0

    def _read_clear(self, view: memoryview) -> int:
        count = min(view.nbytes, self._clear_left)
        if self._received is None:
            count = self._socket.recv_into(view[:count])
        else:
            count = min(count, self._end - self._start)
            view[:count] = self._received[self._start : self._start + count]
            self._taken(count)
        self._clear_left -= count
        return count

    def _whole(self, received: memoryview) -> bool:
        return self._end - self._start >= self._opener.next_nbytes(received[self._start : self._end])

    def _receive(self) -> bool:
        """Read from the socket; False if the peer has closed."""
        if self._received is None:
            self._received = self._buffers.take()
            self._start = self._end = 0
        rest = self._end - self._start
        missing = self._opener.next_nbytes(self._received[self._start : self._end]) - rest
        if self._start and (rest <= PREFIX_NBYTES or self._end + missing > self._received.nbytes):
            self._received[:rest] = self._received[self._start : self._end]
            self._start, self._end = 0, rest
        # Of large chunks, read one and the next prefix at a time: a part of the next chunk would have to be moved.
        until = self._end + missing + PREFIX_NBYTES if missing > _ALONE_NBYTES else self._received.nbytes
        try:
            count = self._socket.recv_into(self._received[self._end : until])
        except BlockingIOError:
            self._taken(0)
            raise
        self._end += count
        return bool(count)

    def _taken(self, nbytes: int) -> None:
        """Drop the first `nbytes` received bytes, and give the buffer back if none is left."""
        self._start += nbytes
        if self._start == self._end and self._received is not None:
            self._buffers.give(self._received)
            self._received = None
