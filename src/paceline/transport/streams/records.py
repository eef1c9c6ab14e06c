"""The format of the bytes of a local link: records, which are checked before they are used. No I/O.

A message is a prelude, a row for each frame, the header, and the bytes of the frames that are not in shared memory::

    MESSAGE      header_nbytes, rows, cell, serial  |  (file, offset, nbytes) * rows  |  header  |  bytes of frames
    CONTROL      header_nbytes                      |  a control frame of the handshake
    TABLE        nbytes                             (with a descriptor) the table of loans, which the reader writes to
    SHARED_FILE  number, nbytes                     (with a descriptor) the shared file that rows name by this number
    DROP         number                             no row will name that shared file again: the reader unmaps it

`cell` and `serial` name the loan of the frames that are in shared memory (see `memory.loans`).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.wire.frames import WireLimits

MESSAGE, CONTROL, TABLE, SHARED_FILE, DROP = range(1, 6)
INLINE = 0
"""The file number of a frame that is not in shared memory: its bytes follow the header."""

_PRELUDE = struct.Struct("=B3xIIIQQ")
_ROW = struct.Struct("=QQQ")
PRELUDE_NBYTES = _PRELUDE.size
MAX_SHARED_FILES = 1 << 16

Row = tuple[int, int, int]
"""One frame of a message: the number of its shared file (or `INLINE`), its offset there, and its size in bytes."""


Prelude = tuple[int, int, int, int, int, int]
"""The first bytes of a record: kind, header_nbytes, rows, cell, number, nbytes.

Fields that the kind does not use are 0. For a message, the number is the serial of its loan.
"""


def open_prelude(buffer: bytes | bytearray, start: int, limits: WireLimits) -> tuple[Prelude, int]:
    """Read and check the prelude at offset `start` of `buffer`.

    Returns it with the size in bytes of the record up to the end of its header.

    Raises:
        RefusedFrameError: rule ``record`` for an unknown kind, ``frame-count`` or ``header-size`` for more than the
            limits allow.
    """
    prelude: Prelude = _PRELUDE.unpack_from(buffer, start)
    kind, header_nbytes, rows, _, _, _ = prelude
    if not MESSAGE <= kind <= DROP or (rows and kind != MESSAGE) or (header_nbytes and kind > CONTROL):
        raise RefusedFrameError("record", f"kind {kind} with {rows} rows")
    if rows > limits.max_frames:
        raise RefusedFrameError("frame-count", f"{rows} frames, at most {limits.max_frames}")
    if header_nbytes > limits.max_header_nbytes:
        raise RefusedFrameError("header-size", f"{header_nbytes} bytes, at most {limits.max_header_nbytes}")
    return prelude, PRELUDE_NBYTES + rows * _ROW.size + header_nbytes


def open_rows(buffer: memoryview, limits: WireLimits) -> list[Row]:
    """Read and check the rows of a message that has frames.

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


def message_record(header: bytes, rows: Sequence[Row] = (), cell: int = 0, serial: int = 0) -> bytes:
    """Encode a message, without the bytes of its frames."""
    prelude = _PRELUDE.pack(MESSAGE, len(header), len(rows), cell, serial, 0)
    if not rows:
        return prelude + header
    numbers = itertools.chain.from_iterable(rows)
    return b"".join((prelude, struct.pack(f"={3 * len(rows)}Q", *numbers), header))


def control_record(frame: bytes) -> bytes:
    """Encode a control frame of the handshake."""
    return _PRELUDE.pack(CONTROL, len(frame), 0, 0, 0, 0) + frame


def memory_record(kind: int, number: int = 0, nbytes: int = 0) -> bytes:
    """Encode a record about shared memory; `kind` is `TABLE`, `SHARED_FILE` or `DROP`."""
    return _PRELUDE.pack(kind, 0, 0, 0, number, nbytes)
