"""Loans: frames that a peer reads in place. A table in shared memory tells the lender when the peer has dropped them.

Each side of a session has a table of 64-bit words for the frames that it lends, which its peer may write to. A loan
takes a free cell of the table and the next serial number; both are sent with the message. When the peer drops the last
frame of the loan, it writes the serial number into the cell. That needs no message, so none can be lost. A peer that
ends the session writes the first serial number that it did not read into word 0. The peer sets word 1 when it has
mapped the table. The death of the peer's process ends all loans to it.
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

CELLS = 4096
_UNREAD, _MAPPED = 0, 1  # the two words that are not cells
_WORD_NBYTES = 8
_CHECK_S = 0.02


class PeerProcess:
    """Tells whether a process is dead. It asks the system at most once in 20 ms."""

    def __init__(self, pid: int) -> None:
        """Watch the process `pid`.

        Raises:
            OSError: the process has ended, or it is in another process namespace.
        """
        fd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, fd).atexit = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._dead = False
        self._check_at = 0.0

    @property
    def dead(self) -> bool:
        """Whether the process is dead; the answer may be some milliseconds old."""
        now = time.monotonic()
        if not self._dead and now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._dead = bool(self._poll.poll(0))
        return self._dead


class Loan:
    """The `Delivery` of frames that one peer reads in place. It keeps the frames, so their memory is not reused."""

    __slots__ = ("_frames", "_table", "cell", "serial")

    def __init__(self, table: LoanTable, cell: int, serial: int, frames: Sequence[Frame]) -> None:
        self._table = table
        self._frames: Sequence[Frame] | None = frames
        self.cell = cell
        self.serial = serial

    @property
    def done(self) -> bool:
        """Whether the peer has dropped every frame of the loan, or will never read them."""
        if self._frames is None:
            return True
        table, words = self._table, self._table.words
        unread = 0 < words[_UNREAD] <= self.serial or (table.peer_closed and not words[_MAPPED])
        if words[self.cell] == self.serial or unread or table.peer.dead:
            self.end()
            return True
        return False

    def end(self) -> None:
        """Drop the frames on this side and free the cell: the peer has dropped the frames, or will not get them."""
        if self._frames is not None:
            self._frames = None
            self._table.free.append(self.cell)


class LoanTable:
    """The lender's side: all loans to one peer. The table outlives the session while loans are open."""

    def __init__(self, peer: PeerProcess) -> None:
        """Make the table that the process `peer` will write to.

        Raises:
            OSError: this system cannot share memory.
        """
        self.peer = peer
        self.fd, self._mapped = shared_files.create("loans", CELLS * _WORD_NBYTES, peers_write=True)
        self.words = memoryview(self._mapped).cast("Q")
        self.free = list(range(_MAPPED + 1, CELLS))
        self.peer_closed = False
        """Whether the peer has closed its end of the link."""
        self._serial = 0
        self._open: list[Loan] = []
        self._sweep_at = 64

    def lend(self, frames: Sequence[Frame]) -> Loan | None:
        """Make a loan of `frames`; None if no cell is free."""
        if len(self._open) >= self._sweep_at:
            self.sweep()
        if not self.free:
            return None
        self._serial += 1
        loan = Loan(self, self.free.pop(), self._serial, frames)
        self._open.append(loan)
        return loan

    def sweep(self) -> bool:
        """Forget the loans that are done; True if other loans are open."""
        self._open = [loan for loan in self._open if not loan.done]
        self._sweep_at = 64 + 2 * len(self._open)
        return bool(self._open)

    def peer_has_closed(self) -> None:
        """Note that the peer has closed its end of the link. If it has not mapped the table, all loans are done."""
        self.peer_closed = True

    def close(self) -> None:
        """Close the descriptor. Open loans still end when the peer drops their frames. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Borrowed(weakref.ref[ctypes.Array[ctypes.c_char]]):
    """A weak reference to the frames of one loan in one shared file. It keeps the file mapped while a view is in use.

    `others` has one entry for each further shared file of the loan that is still in use.
    """

    __slots__ = ("cell", "mapping", "others", "pid", "serial", "words")
    mapping: shared_files.Mapping
    words: memoryview[int]
    cell: int
    serial: int
    others: list[None]
    pid: int


_borrowed: dict[int, _Borrowed] = {}


def _dropped(borrowed: _Borrowed) -> None:
    _borrowed.pop(id(borrowed), None)
    if borrowed.pid != os.getpid():
        return  # a forked child dropped its copy: the process that borrowed the frames still has them
    try:
        borrowed.others.pop()
    except IndexError:
        borrowed.words[borrowed.cell] = borrowed.serial


class Borrower:
    """The borrower's side: makes views of lent frames, and writes to the lender's table when they are dropped."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the table `fd`; the caller still owns and closes the descriptor.

        Raises:
            RefusedFrameError: rule ``shared-file``: `fd` is not a table of loans.
            OSError: the system cannot map it.
        """
        if nbytes != CELLS * _WORD_NBYTES:
            raise RefusedFrameError(
                "shared-file", f"a table of loans must have {CELLS * _WORD_NBYTES} bytes, not {nbytes}"
            )
        self._words = memoryview(shared_files.map_writable(fd, nbytes)).cast("Q")
        self._words[_MAPPED] = 1
        self._serial = 0

    def borrow(self, cell: int, serial: int, places: Sequence[tuple[shared_files.Mapping, int, int]]) -> list[Frame]:
        """Make a view of each place (mapping, offset, nbytes). The lender sees when the last view is dropped.

        The views look writable, because torch accepts no others, but the system kills a process that writes to one.

        Raises:
            RefusedFrameError: rule ``reference``: the cell does not exist, or the serial number is not above the last.
        """
        if not _MAPPED < cell < CELLS or serial <= self._serial or serial >> 63:
            raise RefusedFrameError(
                "reference", f"cell {cell} does not exist, or loan {serial} does not follow loan {self._serial}"
            )
        self._serial = serial
        views: dict[shared_files.Mapping, Frame] = {}
        others: list[None] = []
        frames = []
        for mapping, offset, nbytes in places:
            view = views.get(mapping)
            if view is None:
                if views:
                    others.append(None)
                holder = mapping.array.from_address(mapping.address)
                borrowed = _Borrowed(holder, _dropped)
                borrowed.mapping, borrowed.words, borrowed.others = mapping, self._words, others
                borrowed.cell, borrowed.serial, borrowed.pid = cell, serial, os.getpid()
                _borrowed[id(borrowed)] = borrowed
                view = views[mapping] = memoryview(holder).cast("B")
            frames.append(view[offset : offset + nbytes])
        return frames

    def close(self) -> None:
        """Return all loans that were sent but not read, because the session has ended."""
        self._words[_UNREAD] = self._serial + 1
