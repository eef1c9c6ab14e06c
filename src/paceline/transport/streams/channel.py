"""What a stream of records needs from its socket, and the unix socket that carries descriptors too."""

from __future__ import annotations

import array
import contextlib
import socket as sockets
from collections.abc import Sequence
from typing import Protocol

MAX_FDS = 8
"""At most this many descriptors come with one read."""

_ANCILLARY_NBYTES = sockets.CMSG_SPACE(MAX_FDS * 4)
_IOV_MAX = 64


class Channel(Protocol):
    """A connection that carries bytes in order. It never waits.

    Every method raises BlockingIOError if the connection accepts or has nothing now, and OSError if it is broken.
    """

    near: bool
    """Whether the peer is on this host: it then answers so soon that it is worth a spin."""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        ...

    def write(self, views: Sequence[memoryview], head_nbytes: int, fd: int = -1) -> int:
        """Write the first bytes of `views`, and the descriptor `fd` with them; returns the number of bytes.

        The first `head_nbytes` bytes belong to the head of a record, all others to its frames. After a BlockingIOError,
        the next call must begin with the same bytes.
        """
        ...

    def write_record(self, record: bytes) -> int:
        """Write the first bytes of a record without frames; returns their number. Only if the peer is `near`."""
        ...

    def read_head(self, view: memoryview) -> tuple[int, list[int]]:
        """Read bytes that begin with the head of a record; returns their number (0: the peer has closed).

        Also returns the descriptors that came with them, which the caller then owns.

        Raises:
            RefusedFrameError: the bytes break a rule of the channel.
        """
        ...

    def read_frame(self, view: memoryview) -> int:
        """Read bytes of a frame; returns their number (0: the peer has closed).

        Raises:
            RefusedFrameError: the bytes break a rule of the channel.
        """
        ...

    @property
    def buffered(self) -> bool:
        """Whether a read would find bytes that have left the socket already."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the peer can read all that was written, even if this side closes now and has bytes to read."""
        ...

    def end_writing(self) -> None:
        """Let the peer read the end of the connection behind everything that was written. Idempotent."""
        ...

    def shutdown(self) -> None:
        """End the connection for both sides; the descriptor stays open. Idempotent."""
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


class UnixChannel:
    """A unix stream socket."""

    near = True
    buffered = False
    settled = True

    def __init__(self, socket: sockets.socket) -> None:
        self._socket = socket
        self.write_record = socket.send

    def fileno(self) -> int:
        """See `Channel.fileno`."""
        return self._socket.fileno()

    def write(self, views: Sequence[memoryview], head_nbytes: int, fd: int = -1) -> int:
        """See `Channel.write`."""
        if fd >= 0:
            rights = [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, array.array("i", [fd]))]
            return self._socket.sendmsg(views[:_IOV_MAX], rights)
        return self._socket.send(views[0]) if len(views) == 1 else self._socket.sendmsg(views[:_IOV_MAX])

    def read_head(self, view: memoryview) -> tuple[int, list[int]]:
        """See `Channel.read_head`."""
        count, ancillary, _, _ = self._socket.recvmsg_into([view], _ANCILLARY_NBYTES, sockets.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, data in ancillary:
            if level == sockets.SOL_SOCKET and kind == sockets.SCM_RIGHTS:
                fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
        return count, fds

    def read_frame(self, view: memoryview) -> int:
        """See `Channel.read_frame`."""
        return self._socket.recv_into(view)

    def end_writing(self) -> None:
        """See `Channel.end_writing`. The peer has everything already, so `close` is enough."""

    def shutdown(self) -> None:
        """See `Channel.shutdown`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        """See `Channel.close`."""
        self._socket.close()
