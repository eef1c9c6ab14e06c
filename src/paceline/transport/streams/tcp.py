"""TCP connections that carry a stream: what all of them share, and the plain one, which loopback sessions use."""

from __future__ import annotations

import contextlib
import fcntl
import socket as sockets
import termios
from collections.abc import Sequence

_IOV_MAX = 1024

WORTH_NBYTES = 256 << 10
"""In the middle of a frame, a reader is not woken for fewer bytes than this. To wake it for every packet would
cost more than the copy of the packet."""


class TcpChannel:
    """What every `Channel` over TCP shares."""

    near = False

    def __init__(self, socket: sockets.socket) -> None:
        """Take over `socket`, which is connected and does not block."""
        self._socket = socket
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """See `Channel.fileno`."""
        return self._socket.fileno()

    @property
    def settled(self) -> bool:
        """See `Channel.settled`: the peer's system has acknowledged every byte.

        A connection that is closed while it has bytes to read is reset, and what the peer does not have yet is lost.
        """
        try:
            return fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)) == bytes(4)
        except OSError:  # not connected any more
            return True

    def end_writing(self) -> None:
        """See `Channel.end_writing`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_WR)

    def shutdown(self) -> None:
        """See `Channel.shutdown`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        """See `Channel.close`."""
        self._socket.close()


class PlainChannel(TcpChannel):
    """A `Channel` over a loopback connection, without encryption: other machines cannot reach it.

    The system copies from and to the memory of the frames, and nothing else does. The sizes of the socket's buffers are
    left to the system: it raises them as needed, and stops doing so once they are set.
    """

    buffered = False

    def __init__(self, socket: sockets.socket) -> None:
        """See `TcpChannel`."""
        super().__init__(socket)
        self._woken_at = 1

    def write(self, views: Sequence[memoryview], head_nbytes: int, fd: int = -1) -> int:
        """See `Channel.write`. No descriptor can be sent by TCP."""
        assert fd < 0
        return self._socket.send(views[0]) if len(views) == 1 else self._socket.sendmsg(views[:_IOV_MAX])

    def write_record(self, record: bytes) -> int:
        """See `Channel.write_record`."""
        return self.write([memoryview(record)], len(record))

    def read_head(self, view: memoryview) -> tuple[int, list[int]]:
        """See `Channel.read_head`."""
        return self._socket.recv_into(view), []

    def read_frame(self, view: memoryview) -> int:
        """See `Channel.read_frame`. If the frame goes on, the socket becomes readable when much of it has come."""
        try:
            count = self._socket.recv_into(view)
        except BlockingIOError:
            self._wake_at(min(view.nbytes, WORTH_NBYTES))
            raise
        if count == view.nbytes:
            self._wake_at(1)
        return count

    def _wake_at(self, nbytes: int) -> None:
        """Let `poll` report the socket once it has `nbytes` bytes, or has ended."""
        if nbytes != self._woken_at:
            self._woken_at = nbytes
            self._socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVLOWAT, nbytes)
