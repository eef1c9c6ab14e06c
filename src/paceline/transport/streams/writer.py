"""The writing direction of a stream. It never blocks: it queues the bytes that the socket does not accept yet.

Frames in shared memory are lent to a peer of this host; all other frames are written to the channel.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from paceline.errors import TransportError
from paceline.transport.base import COPIED, Delivery, Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import Loan, LoanTable, PeerProcess
from paceline.transport.sessions import NotSentError
from paceline.transport.streams import records
from paceline.transport.streams.channel import Channel

logger = logging.getLogger(__name__)


class _Unsent:
    """A record that was not completely written to the socket. It is also the `Delivery` of its frames."""

    __slots__ = ("_out", "fd", "head_nbytes", "is_message", "loan", "nbytes", "views")

    def __init__(
        self, out: StreamWriter, views: list[memoryview], fd: int, loan: Loan | None, is_message: bool
    ) -> None:
        self._out: StreamWriter | None = out
        self.views = views
        self.fd = fd
        self.loan = loan
        self.is_message = is_message
        self.head_nbytes = views[0].nbytes
        self.nbytes = sum(view.nbytes for view in views[1:])

    @property
    def done(self) -> bool:
        if self._out is not None:
            self._out.flush()
            if self._out is not None:
                return False
        return self.loan is None or self.loan.done

    def sent(self) -> None:
        """Note that the whole record was written to the socket."""
        self._out = None
        self.views = []

    def dropped(self) -> None:
        """Drop the record, which will never be sent, and end its loan."""
        self.sent()
        if self.loan is not None:
            self.loan.end()


class StreamWriter:
    """Writes the records of one link.

    It calls `on_blocked` with True when records begin to wait for the socket, and with False when none waits any more.
    """

    def __init__(
        self,
        channel: Channel,
        limits: LinkLimits,
        arena: Arena,
        process: PeerProcess | None,
        on_blocked: Callable[[bool], None],
    ) -> None:
        """Without `process`, a process of this host, no frame is lent."""
        self.table: LoanTable | None = None
        self._channel = channel
        self._limits = limits
        self._arena = arena
        self._process = process
        self._on_blocked = on_blocked
        self._announced: set[int] = set()
        self._held: list[bytes] = []  # records that wait for the next one; then none is in the queue
        self._queue: deque[_Unsent] = deque()
        self._queued_messages = 0
        self._queued_nbytes = 0
        self._broken = False

    @property
    def empty(self) -> bool:
        """Whether all records were written to the socket."""
        return not self._queue and not self._held

    def send(self, header: bytes, frames: Sequence[Frame], *, later: bool = False) -> Delivery:
        """Send one message: write what the socket accepts now, and queue the rest.

        With `later`, a message whose frames are lent, or that has none, waits for the next record or `flush`.

        Raises:
            NotSentError: the queue for this peer has reached its limit of messages or bytes.
        """
        if self._queued_messages >= self._limits.queue_messages:
            raise NotSentError.queue_full()
        if not frames:
            record = records.message_record(header)
            if not self._written_at_once(record, later):
                self._put(record, is_message=True)
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
        if not inline and loan is not None and self._written_at_once(record, later):
            return loan
        unsent = self._put(record, inline, loan=loan, is_message=True)
        return unsent or loan or COPIED

    def control(self, frame: bytes) -> None:
        """Send a control frame, after all records that wait."""
        self._put(records.control_record(frame))

    def retired(self, number: int) -> None:
        """Tell the peer to unmap region `number`, which this process returns to the system."""
        if number in self._announced:
            self._announced.remove(number)
            self._put(records.memory_record(records.DROP, number))

    def flush(self) -> None:
        """Write as many of the waiting records as the socket accepts."""
        if self._held:
            held, self._held = b"".join(self._held), []
            self._put(held, is_message=True)
        queue = self._queue
        if not queue:
            return
        while queue and self._write(queue[0]):
            self._forget(queue.popleft()).sent()
        if not queue:
            self._on_blocked(False)

    def sweep(self) -> None:
        """Release the frames of loans whose frames the peer has dropped."""
        if self.table is not None:
            self.table.sweep()

    def peer_has_closed(self) -> None:
        """Note that the peer has closed its end of the link: see `LoanTable.peer_has_closed`."""
        if self.table is not None:
            self.table.peer_has_closed()

    def close(self) -> LoanTable | None:
        """Drop the records that wait. Returns the table of loans, if there is one: some loans may still be open."""
        self._held.clear()
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
        """Make a row for each frame; returns the rows, and the frames whose bytes must be written to the socket.

        Announces a shared file to the peer when a row names it for the first time.
        """
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

    def _written_at_once(self, record: bytes, later: bool) -> bool:
        """Write a record without inline frames, unless others wait for the socket; False if they do.

        With `later` the record is only held. The next record takes all held ones along.
        """
        if self._queue or self._broken or not self._channel.near:
            return False
        if later:
            self._held.append(record)
            return True
        if self._held:
            self._held.append(record)
            record, self._held = b"".join(self._held), []
        try:
            count = self._channel.write_record(record)
        except OSError:
            self._put(record, is_message=True)  # meets the same error, and handles it
            return True
        if count < len(record):
            self._wait(_Unsent(self, [memoryview(record)[count:]], -1, None, True))
        return True

    def _wait(self, unsent: _Unsent) -> None:
        """Queue a record that the socket did not accept as a whole."""
        if not self._queue:
            self._on_blocked(True)
        self._queue.append(unsent)
        self._queued_messages += unsent.is_message
        self._queued_nbytes += unsent.nbytes

    def _put(
        self,
        record: bytes,
        inline: Sequence[Frame] = (),
        *,
        fd: int = -1,
        loan: Loan | None = None,
        is_message: bool = False,
    ) -> _Unsent | None:
        """Send a record after those that wait. Returns it if a part of it has to wait, None otherwise."""
        if self._broken:
            if loan is not None:
                loan.end()
            return None
        if self._held or (self._queue and not self._channel.near):
            self.flush()  # a role that sends while it computes does not come back to its loop for a while
        views = [memoryview(record), *(view.cast("B") for view in inline if view.nbytes)]
        unsent = _Unsent(self, views, fd, loan, is_message)
        if not self._queue and self._write(unsent):
            unsent.sent()
            return None
        self._wait(unsent)
        return unsent

    def _write(self, unsent: _Unsent) -> bool:
        """Write the rest of a record; True if nothing of it has to wait.

        If the socket is broken, drops the rest and returns True: the reading side reports the end of the session.
        """
        while unsent.views and not self._broken:
            try:
                count = self._channel.write(unsent.views, unsent.head_nbytes, unsent.fd)
                unsent.fd = -1
            except BlockingIOError:
                return False
            except (OSError, TransportError) as error:
                logger.debug("a stream broke: %s", error)
                self._broken = True
                self._channel.shutdown()  # the reading side then ends the session, whatever the error
                break
            views = unsent.views
            unsent.head_nbytes = max(0, unsent.head_nbytes - count)
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
