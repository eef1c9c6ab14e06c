"""Frames that a peer reads in place: who may still read what, kept in memory that both sides see.

Each side of a session has one table of numbers that it shows to the other. Who lends frames takes a slot and a
ticket and sends both with the reference; who has let go of the last of these frames writes the ticket into the slot.
No message is needed, and none can be lost. Word 0 says which ticket was the first that was not read when the reader
ended the session, word 1 that it ever had the table, and a reader that is dead reads nothing any more.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
import weakref
from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.transport.base import Frame
from paceline.transport.memory import shared_files

SLOTS = 4096
_MAPPED = 1  # a word that the reader sets once it has the table
_WORD_NBYTES = 8
_ASK_S = 0.02


class Witness:
    """Knows whether a process is dead, asking the system not too often."""

    def __init__(self, pid: int) -> None:
        """Watch the process `pid`.

        Raises:
            OSError: it cannot be watched: it is gone, or in another world.
        """
        fd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, fd).atexit = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._gone = False
        self._ask_at = 0.0

    @property
    def gone(self) -> bool:
        """True some milliseconds after it has died, and for ever."""
        now = time.monotonic()
        if not self._gone and now >= self._ask_at:
            self._ask_at = now + _ASK_S
            self._gone = bool(self._poll.poll(0))
        return self._gone


class Loan:
    """A `Delivery`: frames that one peer may read. They are kept until it is done, so no room in them is used again."""

    __slots__ = ("_frames", "_table", "slot", "ticket")

    def __init__(self, table: LoanTable, slot: int, ticket: int, frames: Sequence[Frame]) -> None:
        self._table = table
        self._frames: Sequence[Frame] | None = frames
        self.slot = slot
        self.ticket = ticket

    @property
    def done(self) -> bool:
        """Whether the peer has let go of every frame, or never will read them."""
        if self._frames is None:
            return True
        table, words = self._table, self._table.words
        unread = 0 < words[0] <= self.ticket or (table.deserted and not words[_MAPPED])
        if words[self.slot] == self.ticket or unread or table.witness.gone:
            self.end()
            return True
        return False

    def end(self) -> None:
        """Take the frames back: the peer has let go of them, or will not get them."""
        if self._frames is not None:
            self._frames = None
            self._table.free.append(self.slot)


class LoanTable:
    """What this process has lent to one peer, for as long as anything is lent."""

    def __init__(self, witness: Witness) -> None:
        """Make the table that the peer, watched by `witness`, will write to.

        Raises:
            OSError: memory cannot be shared here.
        """
        self.witness = witness
        self.fd, self._mapped = shared_files.create("loans", SLOTS * _WORD_NBYTES, peers_write=True)
        self.words = memoryview(self._mapped).cast("Q")
        self.free = list(range(_MAPPED + 1, SLOTS))
        self.deserted = False
        """Whether the peer has closed its end of the link."""
        self._ticket = 0
        self._open: list[Loan] = []
        self._sweep_at = 64

    def lend(self, frames: Sequence[Frame]) -> Loan | None:
        """A new loan of `frames`; None when as much is lent as can be."""
        if len(self._open) >= self._sweep_at:
            self.sweep()
        if not self.free:
            return None
        self._ticket += 1
        loan = Loan(self, self.free.pop(), self._ticket, frames)
        self._open.append(loan)
        return loan

    def sweep(self) -> bool:
        """Let go of what the peer has let go of; whether anything is still lent."""
        self._open = [loan for loan in self._open if not loan.done]
        self._sweep_at = 64 + 2 * len(self._open)
        return bool(self._open)

    def close(self) -> None:
        """The descriptor is not needed any more; loans end as before. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Reading(weakref.ref[ctypes.Array[ctypes.c_char]]):
    """Frames of one message in one segment that are still held. The mapping lasts as long."""

    __slots__ = ("mapping", "others", "pid", "slot", "ticket", "words")
    mapping: shared_files.Mapping
    words: memoryview[int]
    slot: int
    ticket: int
    others: list[None]
    pid: int


_readings: dict[int, _Reading] = {}


def _let_go(reading: _Reading) -> None:
    _readings.pop(id(reading), None)
    if reading.pid != os.getpid():
        return  # a fork dropped its copy: the process that was given the frames still has them
    try:
        reading.others.pop()
    except IndexError:
        reading.words[reading.slot] = reading.ticket


class Borrower:
    """The lender's table, as the reader sees it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the table behind `fd`, which stays the caller's.

        Raises:
            RefusedFrameError: rule ``segment``: it is not such a table.
            OSError: it cannot be mapped.
        """
        if nbytes != SLOTS * _WORD_NBYTES:
            raise RefusedFrameError("segment", f"a table of {nbytes} bytes")
        self._words = memoryview(shared_files.map_writable(fd, nbytes)).cast("Q")
        self._words[_MAPPED] = 1
        self._ticket = 0

    def borrow(self, slot: int, ticket: int, places: Sequence[tuple[shared_files.Mapping, int, int]]) -> list[Frame]:
        """Views of these places (mapping, offset, nbytes); when the last is dropped, the lender will see it.

        They look writable, since torch does not take others, but whoever writes to one is ended by the system.

        Raises:
            RefusedFrameError: rule ``reference``: the slot or the ticket cannot be.
        """
        if not _MAPPED < slot < SLOTS or ticket <= self._ticket or ticket >> 63:
            raise RefusedFrameError("reference", f"slot {slot}, ticket {ticket} after {self._ticket}")
        self._ticket = ticket
        views: dict[shared_files.Mapping, Frame] = {}
        others: list[None] = []
        frames = []
        for mapping, offset, nbytes in places:
            view = views.get(mapping)
            if view is None:
                if views:
                    others.append(None)
                holder = mapping.array.from_address(mapping.address)
                reading = _Reading(holder, _let_go)
                reading.mapping, reading.words, reading.others = mapping, self._words, others
                reading.slot, reading.ticket, reading.pid = slot, ticket, os.getpid()
                _readings[id(reading)] = reading
                view = views[mapping] = memoryview(holder).cast("B")
            frames.append(view[offset : offset + nbytes])
        return frames

    def close(self) -> None:
        """The session is over: what was sent and not read will never be."""
        self._words[0] = self._ticket + 1
