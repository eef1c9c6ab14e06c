"""What goes out on a local link: never blocks, keeps what the socket does not take yet, and lends what can be lent."""

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
from paceline.transport.memory.loans import Loan, LoanTable, Witness
from paceline.transport.sessions import NotSentError

logger = logging.getLogger(__name__)

_IOV_MAX = 64


class _Waiting:
    """A record that the socket has not taken whole, and a `Delivery` of the bytes in it."""

    __slots__ = ("_out", "fd", "is_message", "loan", "nbytes", "views")

    def __init__(self, out: Outgoing, views: list[memoryview], fd: int, loan: Loan | None, is_message: bool) -> None:
        self._out: Outgoing | None = out
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
        """The socket has it all."""
        self._out = None
        self.views = []

    def dropped(self) -> None:
        """It will never be sent."""
        self.sent()
        if self.loan is not None:
            self.loan.end()


class Outgoing:
    """One direction of a local link. `on_blocked` hears whether something waits for the socket."""

    def __init__(
        self,
        socket: sockets.socket,
        limits: LinkLimits,
        arena: Arena,
        witness: Witness,
        on_blocked: Callable[[bool], None],
    ) -> None:
        self.table: LoanTable | None = None
        self._socket = socket
        self._limits = limits
        self._arena = arena
        self._witness: Witness | None = witness
        self._on_blocked = on_blocked
        self._announced: set[int] = set()
        self._queue: deque[_Waiting] = deque()
        self._queued_messages = 0
        self._queued_nbytes = 0
        self._broken = False

    @property
    def empty(self) -> bool:
        """Whether the socket has everything."""
        return not self._queue

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Send one message, or as much as the socket takes now, and the rest later.

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
        slot, ticket = (0, 0) if loan is None else (loan.slot, loan.ticket)
        record = records.message_record(header, rows, slot, ticket)
        waiting = self._put(record, inline, loan=loan, is_message=True)
        return waiting or loan or COPIED

    def control(self, frame: bytes) -> None:
        """Send a control frame after all that was sent before."""
        self._put(records.control_record(frame))

    def retired(self, number: int) -> None:
        """A segment of ours is no more: the peer need not keep it mapped."""
        if number in self._announced:
            self._announced.remove(number)
            self._put(records.memory_record(records.DROP, number))

    def flush(self) -> None:
        """Give the socket what it takes."""
        queue = self._queue
        if not queue:
            return
        while queue and self._write(queue[0]):
            self._forget(queue.popleft()).sent()
        if not queue:
            self._on_blocked(False)

    def deserted(self) -> None:
        """The peer has closed its end: what it has not begun to read it never will."""
        if self.table is not None:
            self.table.deserted = True

    def close(self) -> LoanTable | None:
        """Drop what waits; loans go on until the peer lets go, in the table that is returned."""
        while self._queue:
            self._forget(self._queue.popleft()).dropped()
        self._broken = True
        self._on_blocked = lambda blocked: None
        table, self.table, self._witness = self.table, None, None
        if table is not None:
            table.close()
        return table

    # ------------------------------------------------------------ inside

    def _resolve(self, frames: Sequence[Frame]) -> tuple[list[records.Row], list[Frame]]:
        """A row for each frame, and those frames whose bytes must be sent."""
        rows: list[records.Row] = []
        inline: list[Frame] = []
        places = self._arena.locate(frames) if self._can_lend() else [None] * len(frames)
        announced = self._announced
        for frame, place in zip(frames, places, strict=True):
            if place is None:
                rows.append((records.INLINE, 0, frame.nbytes))
                inline.append(frame)
                continue
            segment, offset = place
            number = segment.number
            if number not in announced:
                announced.add(number)
                self._put(records.memory_record(records.SEGMENT, number, segment.nbytes), fd=segment.fd)
            rows.append((number, offset, frame.nbytes))
        return rows, inline

    def _can_lend(self) -> bool:
        if self.table is None and self._arena.shared and self._witness is not None:
            try:
                self.table = LoanTable(self._witness)
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
    ) -> _Waiting | None:
        """Send a record, after what waits; None when all of it is sent."""
        if self._broken:
            if loan is not None:
                loan.end()
            return None
        views = [memoryview(record), *(view.cast("B") for view in inline if view.nbytes)]
        waiting = _Waiting(self, views, fd, loan, is_message)
        if not self._queue and self._write(waiting):
            waiting.sent()
            return None
        if not self._queue:
            self._on_blocked(True)
        self._queue.append(waiting)
        self._queued_messages += is_message
        self._queued_nbytes += waiting.nbytes
        return waiting

    def _write(self, waiting: _Waiting) -> bool:
        """Write on; whether the socket has all of it. A peer that is gone takes everything: its end is read soon."""
        while waiting.views and not self._broken:
            try:
                if waiting.fd >= 0:
                    rights = [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, array.array("i", [waiting.fd]))]
                    count = self._socket.sendmsg(waiting.views[:_IOV_MAX], rights)
                    waiting.fd = -1
                elif len(waiting.views) == 1:
                    count = self._socket.send(waiting.views[0])
                else:
                    count = self._socket.sendmsg(waiting.views[:_IOV_MAX])
            except BlockingIOError:
                return False
            except OSError as error:
                logger.debug("a local link broke: %s", error)
                self._broken = True
                with contextlib.suppress(OSError):
                    self._socket.shutdown(sockets.SHUT_RDWR)  # whatever it was, the reading side ends the session
                break
            views = waiting.views
            done = 0
            while done < len(views) and count >= views[done].nbytes:
                count -= views[done].nbytes
                done += 1
            del views[:done]
            if count:
                views[0] = views[0][count:]
        if self._broken and waiting.loan is not None:
            waiting.loan.end()
        return True

    def _forget(self, waiting: _Waiting) -> _Waiting:
        self._queued_messages -= waiting.is_message
        self._queued_nbytes -= waiting.nbytes
        return waiting
