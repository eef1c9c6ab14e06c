"""The bytes of a local link: records of fixed form, checked before anything is done with them. No I/O.

A message is a prelude, a row for each frame, the header, and the bytes of those frames that do not lie in shared
memory::

    MESSAGE   header_nbytes, rows, slot, ticket  |  (segment, offset, nbytes) * rows  |  header  |  bytes of frames
    CONTROL   header_nbytes                      |  a control frame of the handshake
    TABLE     nbytes                             (with a descriptor) where the reader writes what it has let go of
    SEGMENT   number, nbytes                     (with a descriptor) the segment that rows call by this number
    DROP      number                             the segment will not be named again
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import RefusedFrameError
from paceline.wire.frames import WireLimits

MESSAGE, CONTROL, TABLE, SEGMENT, DROP = range(1, 6)
INLINE = 0
"""In place of a segment's number: the bytes follow the header."""

_PRELUDE = struct.Struct("=B3xIIIQQ")
_ROW = struct.Struct("=QQQ")
PRELUDE_NBYTES = _PRELUDE.size
MAX_SEGMENTS = 1 << 16

Row = tuple[int, int, int]
"""Segment, offset, nbytes."""


class Prelude(NamedTuple):
    """The first bytes of a record; what is not used by its kind is 0."""

    kind: int
    header_nbytes: int = 0
    rows: int = 0
    slot: int = 0
    number: int = 0
    nbytes: int = 0

    @property
    def more_nbytes(self) -> int:
        """Bytes of the rows and the header, which follow at once."""
        return self.rows * _ROW.size + self.header_nbytes


def open_prelude(buffer: bytes | bytearray, start: int, limits: WireLimits) -> Prelude:
    """The prelude at `start`.

    Raises:
        RefusedFrameError: rule ``record`` for a kind that does not exist, ``frame-count`` or ``header-size`` for
            more than may follow.
    """
    prelude = Prelude._make(_PRELUDE.unpack_from(buffer, start))
    kind, header_nbytes, rows, _, _, _ = prelude
    if not MESSAGE <= kind <= DROP or (rows and kind != MESSAGE) or (header_nbytes and kind > CONTROL):
        raise RefusedFrameError("record", f"kind {kind} with {rows} rows")
    if rows > limits.max_frames:
        raise RefusedFrameError("frame-count", f"{rows} frames, at most {limits.max_frames}")
    if header_nbytes > limits.max_header_nbytes:
        raise RefusedFrameError("header-size", f"{header_nbytes} bytes, at most {limits.max_header_nbytes}")
    return prelude


def open_rows(buffer: memoryview, limits: WireLimits) -> list[Row]:
    """The rows of a message that has some, their sizes within the limits.

    Raises:
        RefusedFrameError: rule ``frame-cap`` or ``message-cap``.
    """
    rows = list(_ROW.iter_unpack(buffer))
    sizes = [nbytes for _, _, nbytes in rows]
    largest, total = max(sizes), sum(sizes)
    if largest > limits.max_frame_nbytes:
        raise RefusedFrameError("frame-cap", f"{largest} bytes, at most {limits.max_frame_nbytes}")
    if total > limits.max_message_nbytes:
        raise RefusedFrameError("message-cap", f"{total} bytes, at most {limits.max_message_nbytes}")
    return rows


def message_record(header: bytes, rows: Sequence[Row] = (), slot: int = 0, ticket: int = 0) -> bytes:
    """A message as far as its header."""
    prelude = _PRELUDE.pack(MESSAGE, len(header), len(rows), slot, ticket, 0)
    if not rows:
        return prelude + header
    numbers = itertools.chain.from_iterable(rows)
    return b"".join((prelude, struct.pack(f"={3 * len(rows)}Q", *numbers), header))


def control_record(frame: bytes) -> bytes:
    """A control frame."""
    return _PRELUDE.pack(CONTROL, len(frame), 0, 0, 0, 0) + frame


def memory_record(kind: int, number: int = 0, nbytes: int = 0) -> bytes:
    """A record about shared memory: `TABLE`, `SEGMENT` or `DROP`."""
    return _PRELUDE.pack(kind, 0, 0, 0, number, nbytes)
