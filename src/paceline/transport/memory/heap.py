"""Blocks that come by TCP lie in memory that ZeroMQ allocates for each frame: have the allocator use it again.

By default the C library gives blocks of this size back to the system as soon as they are freed, and the next one costs
256 page faults: more than the copy into it.
"""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_FRAME_NBYTES = 4 << 20
_KEPT_NBYTES = 128 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 128 MiB that were freed, for frames of up to 4 MiB. Done once; no harm elsewhere."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FRAME_NBYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)
