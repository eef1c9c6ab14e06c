"""The writing direction of a local link: never blocks, queues what the socket does not take, lends what it can."""

from __future__ import annotations

import array
import contextlib
import logging
import socket as sockets
from collections import deque
from collections.abc import Callable, Sequence

from paceline.transport.base import COPIED, Delivery, Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.local import records
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import Loan, LoanTable, PeerProcess
from paceline.transport.sessions import NotSentError

logger = logging.getLogger(__name__)

_IOV_MAX = 64


class _Unsent:
    """A record that the socket has not taken whole, and the `Delivery` of its bytes."""

    __slots__ = ("_out", "fd", "is_message", "loan", "nbytes", "views")

    def __init__(self, out: LocalWriter, views: list[memoryview], fd: int, loan: Loan | None, is_message: bool) -> None:
        self._out: LocalWriter | None = out
        self.views = views
        self.fd = fd
        self.loan = loan
        self.is_message = is_message
        self.nbytes = sum(view.nbytes for view in views[1:])

    @property
    def done(self) -> bool:
        if self._out is not None:
            self._out.flush()
            if self._out is not None:
                return False
        return self.loan is None or self.loan.done

    def sent(self) -> None:
        """The socket has taken all of it."""
        self._out = None
        self.views = []

    def dropped(self) -> None:
        """It will never be sent."""
        self.sent()
        if self.loan is not None:
            self.loan.end()


class LocalWriter:
    """`on_blocked` is told whether records wait for the socket."""

    def __init__(
        self,
        socket: sockets.socket,
        limits: LinkLimits,
        arena: Arena,
        process: PeerProcess,
        on_blocked: Callable[[bool], None],
    ) -> None:
        self.table: LoanTable | None = None
        self._socket = socket
        self._limits = limits
        self._arena = arena
        self._process: PeerProcess | None = process
        self._on_blocked = on_blocked
        self._announced: set[int] = set()
        self._queue: deque[_Unsent] = deque()
        self._queued_messages = 0
        self._queued_nbytes = 0
        self._broken = False

    @property
    def empty(self) -> bool:
        """Whether the socket has taken everything."""
        return not self._queue

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Send one message: as much as the socket takes now, and the rest later.

        Raises:
            NotSentError: as many messages or bytes wait for this peer as the limits allow.
        """
        if self._queued_messages >= self._limits.queue_messages:
            raise NotSentError.queue_full()
        if not frames:
            self._put(records.message_record(header), is_message=True)
            return COPIED
        rows, inline = self._resolve(frames)
        nbytes = sum(view.nbytes for view in inline)
        if self._queued_nbytes and self._queued_nbytes + nbytes > self._limits.queue_nbytes:
            raise NotSentError.queue_full()
        loan = None
        if len(inline) < len(frames):
            assert self.table is not None
            loan = self.table.lend(frames)
            if loan is None:
                inline = [frame for frame in frames if frame.nbytes]
                rows = [(records.INLINE, 0, frame.nbytes) for frame in frames]
        cell, serial = (0, 0) if loan is None else (loan.cell, loan.serial)
        record = records.message_record(header, rows, cell, serial)
        unsent = self._put(record, inline, loan=loan, is_message=True)
        return unsent or loan or COPIED

    def control(self, frame: bytes) -> None:
        """Send a control frame, after everything that was sent before."""
        self._put(records.control_record(frame))

    def retired(self, number: int) -> None:
        """Region `number` of this process is returned to the system: tell the peer to unmap it."""
        if number in self._announced:
            self._announced.remove(number)
            self._put(records.memory_record(records.DROP, number))

    def flush(self) -> None:
        """Write what waits, as far as the socket takes it."""
        queue = self._queue
        if not queue:
            return
        while queue and self._write(queue[0]):
            self._forget(queue.popleft()).sent()
        if not queue:
            self._on_blocked(False)

    def sweep(self) -> None:
        """Drop the frames of loans that are done."""
        if self.table is not None:
            self.table.sweep()

    def peer_has_closed(self) -> None:
        """The peer has closed its end: it will not read what it has not begun to read."""
        if self.table is not None:
            self.table.peer_has_closed()

    def close(self) -> LoanTable | None:
        """Drop what waits. Returns the table of the loans that are still open."""
        while self._queue:
            self._forget(self._queue.popleft()).dropped()
        self._broken = True
        self._on_blocked = lambda blocked: None
        table, self.table, self._process = self.table, None, None
        if table is not None:
            table.close()
        return table

    # ------------------------------------------------------------ inside

    def _resolve(self, frames: Sequence[Frame]) -> tuple[list[records.Row], list[Frame]]:
        """A row for each frame, and the frames whose bytes must be sent. Announces shared files on their first use."""
        rows: list[records.Row] = []
        inline: list[Frame] = []
        places = self._arena.locate(frames) if self._can_lend() else [None] * len(frames)
        announced = self._announced
        for frame, place in zip(frames, places, strict=True):
            if place is None:
                rows.append((records.INLINE, 0, frame.nbytes))
                inline.append(frame)
                continue
            region, offset = place
            number = region.number
            if number not in announced:
                announced.add(number)
                self._put(records.memory_record(records.SHARED_FILE, number, region.nbytes), fd=region.fd)
            rows.append((number, offset, frame.nbytes))
        return rows, inline

    def _can_lend(self) -> bool:
        if self.table is None and self._arena.shared and self._process is not None:
            try:
                self.table = LoanTable(self._process)
            except OSError as error:
                self._arena.stop_sharing(error)
                return False
            words = self.table.words
            self._put(records.memory_record(records.TABLE, 0, words.nbytes), fd=self.table.fd)
        return self.table is not None

    def _put(
        self,
        record: bytes,
        inline: Sequence[Frame] = (),
        *,
        fd: int = -1,
        loan: Loan | None = None,
        is_message: bool = False,
    ) -> _Unsent | None:
        """Send a record after those that wait; None if the socket took all of it."""
        if self._broken:
            if loan is not None:
                loan.end()
            return None
        views = [memoryview(record), *(view.cast("B") for view in inline if view.nbytes)]
        unsent = _Unsent(self, views, fd, loan, is_message)
        if not self._queue and self._write(unsent):
            unsent.sent()
            return None
        if not self._queue:
            self._on_blocked(True)
        self._queue.append(unsent)
        self._queued_messages += is_message
        self._queued_nbytes += unsent.nbytes
        return unsent

    def _write(self, unsent: _Unsent) -> bool:
        """Write on; whether it is done. A broken socket ends the record at once: the reading side reports the end."""
        while unsent.views and not self._broken:
            try:
                if unsent.fd >= 0:
                    rights = [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, array.array("i", [unsent.fd]))]
                    count = self._socket.sendmsg(unsent.views[:_IOV_MAX], rights)
                    unsent.fd = -1
                elif len(unsent.views) == 1:
                    count = self._socket.send(unsent.views[0])
                else:
                    count = self._socket.sendmsg(unsent.views[:_IOV_MAX])
            except BlockingIOError:
                return False
            except OSError as error:
                logger.debug("a local link broke: %s", error)
                self._broken = True
                with contextlib.suppress(OSError):
                    self._socket.shutdown(sockets.SHUT_RDWR)  # whatever the error: the reading side ends the session
                break
            views = unsent.views
            done = 0
            while done < len(views) and count >= views[done].nbytes:
                count -= views[done].nbytes
                done += 1
            del views[:done]
            if count:
                views[0] = views[0][count:]
        if self._broken and unsent.loan is not None:
            unsent.loan.end()
        return True

    def _forget(self, unsent: _Unsent) -> _Unsent:
        self._queued_messages -= unsent.is_message
        self._queued_nbytes -= unsent.nbytes
        return unsent
