"""Frames in slices: what ZeroMQ carries at once is bounded, and a receiver finds the end of every frame."""

from __future__ import annotations

import pytest

from paceline.wire.slices import SLICE_NBYTES, goes_on, joined, slices

MIB = 1 << 20


@pytest.mark.parametrize(
    "nbytes", [0, 1, SLICE_NBYTES - 1, SLICE_NBYTES, SLICE_NBYTES + 1, 2 * SLICE_NBYTES, MIB, 5 * MIB]
)
def test_a_frame_in_slices_is_found_again(nbytes: int) -> None:
    frame = memoryview(bytes(i * i % 251 for i in range(1000)) * (nbytes // 1000 + 1))[:nbytes]
    parts = list(slices(frame))
    assert all(goes_on(part.nbytes) for part in parts[:-1])
    assert not goes_on(parts[-1].nbytes), "the last slice is shorter, so that the receiver knows that it is the last"
    assert all(part.nbytes <= SLICE_NBYTES for part in parts)
    whole = joined(parts)
    assert whole == frame
    assert not whole.readonly


def test_a_block_of_one_mib_needs_eight_slices() -> None:
    assert len(list(slices(memoryview(bytes(MIB))))) == 8
