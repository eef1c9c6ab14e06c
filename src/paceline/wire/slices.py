"""Slices: what ZeroMQ carries at once. A header or frame of `SLICE_NBYTES` or more travels in several slices.

ZeroMQ collects a whole slice before anybody can check it, also from a peer that has not proven itself. Its limit for
one slice is the same before and after the proof, so this limit decides how much memory a stranger can take.

Every slice but the last has exactly `SLICE_NBYTES` bytes, and the last has fewer, perhaps none. So a receiver knows
where a frame ends without being told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SLICE_NBYTES = 131_200
"""One byte more than the largest frame that travels in one slice. A block of 1 MiB makes eight slices."""

OVERHEAD_NBYTES = 64
"""What the encryption of ZeroMQ adds to a slice, at most."""


def slices(content: memoryview) -> Iterator[memoryview]:
    """Cut `content`, contiguous bytes, into its slices. The last one is shorter than `SLICE_NBYTES`."""
    for start in range(0, content.nbytes + 1, SLICE_NBYTES):
        yield content[start : start + SLICE_NBYTES]


def goes_on(nbytes: int) -> bool:
    """Whether another slice of the same header or frame follows a slice of `nbytes` bytes."""
    return nbytes == SLICE_NBYTES


def joined(parts: Sequence[memoryview]) -> memoryview:
    """Copy the slices of one header or frame into one writable, contiguous view."""
    return memoryview(bytearray().join(parts))
