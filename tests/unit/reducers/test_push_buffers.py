"""Buffers are reused when they are free, and given back when they are idle."""

from __future__ import annotations

import pytest

from paceline.core.layout import cut
from paceline.reducers.push_buffers import BufferLayout, PushBuffer, PushBuffers
from paceline.types import Kind, TensorSpec

TENSORS = (TensorSpec("weight", (300, 100), "float32", Kind.PARAMETER, 0),)


def allocate(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


@pytest.fixture
def buffers() -> PushBuffers:
    return PushBuffers(BufferLayout(TENSORS, cut(TENSORS)), allocate)


def test_the_blocks_of_a_tensor_are_one_run_of_memory() -> None:
    buffer = PushBuffer(BufferLayout(TENSORS, cut(TENSORS)), allocate)
    buffer.places[0].fill_(1.0)
    assert buffer.runs[0][1] == 300 * 100 * 4
    blocks = b"".join(bytes(frame) for frame in buffer.frames.values())
    assert len(buffer.frames) > 1
    assert blocks.startswith(bytes(buffer.places[0].numpy().data)), "the last block may be padded"


def test_a_buffer_is_reused_once_its_push_is_answered_and_no_reader_holds_it(buffers: PushBuffers) -> None:
    first = buffers.take((), (), ())
    first.send(7)
    assert buffers.take({7}, (), ()) is not first, "the push has no answer"
    assert buffers.take((), {7}, ()) is not first, "the transport still reads the buffer"
    assert buffers.take((), (), ()) is first
    assert buffers.take((), (), (first,)) is not first, "the current turn writes the buffer"
    assert len(buffers) == 2


def test_an_idle_buffer_is_given_back_only_if_it_is_free(buffers: PushBuffers) -> None:
    first = buffers.take((), (), ())
    first.send(7)
    for _ in range(100):
        buffers.begin_turn()
        buffers.take({7}, (), ())
    assert len(buffers) == 2
    second = buffers.take({7}, (), ())
    buffers.take((), (), (second,))
    for _ in range(100):
        buffers.begin_turn()
        buffers.take((), (), ())
    assert len(buffers) == 1
