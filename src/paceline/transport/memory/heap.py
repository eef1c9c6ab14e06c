"""Tune the heap of the C library: keep freed memory for the frames that ZeroMQ allocates.

By default the C library returns frames of 1 MiB to the system as soon as they are freed. The next frame then costs 256
page faults, which take longer than the copy into the frame.
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
    """Let this process keep up to 128 MiB of freed memory, for frames of up to 4 MiB. Later calls do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FRAME_NBYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)
