"""The checks of a received message, before anything is allocated or reaches torch."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RefusedFrameError
from paceline.messages import BlockFrame, Ok, Prepare, Pull, PullReply, Push
from paceline.types import ITEM_NBYTES, Fence, Kind, ModelSpec, OptimizerSpec, TensorSpec
from paceline.wire.frames import (
    WireLimits,
    check_frames,
    check_message,
    message_blocks,
    shape_numel,
)


def frame(nbytes: int) -> memoryview:
    return memoryview(bytes(nbytes))


def rule_of(blocks: list[BlockFrame], frames: list[memoryview], limits: WireLimits | None = None) -> str:
    with pytest.raises(RefusedFrameError) as refused:
        check_frames(blocks, frames, WireLimits() if limits is None else limits)
    return refused.value.rule


@pytest.mark.parametrize(("dtype", "itemsize"), ITEM_NBYTES.items())
def test_a_frame_of_every_dtype_passes_with_its_exact_size(dtype: str, itemsize: int) -> None:
    check_frames([BlockFrame(0, dtype, 10)], [frame(10 * itemsize)])
    assert rule_of([BlockFrame(0, dtype, 10)], [frame(10 * itemsize + 1)]) == "frame-size"


def test_item_sizes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert {name: getattr(torch, name).itemsize for name in ITEM_NBYTES} == ITEM_NBYTES


def test_messages_without_frames_and_empty_frames_pass() -> None:
    check_frames([], [])
    check_frames([BlockFrame(0, "float32", 0)], [frame(0)])


@pytest.mark.parametrize(
    ("block", "nbytes", "rule"),
    [
        (BlockFrame(0, "float32", 3), 16, "frame-size"),
        (BlockFrame(0, "float32", -4), 16, "numel"),
        (BlockFrame(0, "float32", (1 << 62) + 4), 16, "frame-size"),  # wraps to 16 bytes in 64 bits
        (BlockFrame(0, "uint8", (1 << 64) + 16), 16, "frame-size"),
        (BlockFrame(0, "complex64", 2), 16, "dtype"),
        (BlockFrame(0, "Float32", 4), 16, "dtype"),
        (BlockFrame(0, "", 4), 16, "dtype"),
        (BlockFrame(-1, "float32", 4), 16, "block"),
        (BlockFrame(1 << 63, "float32", 4), 16, "block"),
        (BlockFrame(0, "float32", 4, rev=-1), 16, "rev"),
        (BlockFrame(0, "float32", 4, rev=1 << 63), 16, "rev"),
        (BlockFrame(0, "float32", 4, codec="pickle"), 16, "codec"),
    ],
)
def test_header_check_names_the_rule_that_a_frame_breaks(block: BlockFrame, nbytes: int, rule: str) -> None:
    assert rule_of([block], [frame(nbytes)]) == rule


def test_header_check_refuses_a_wrong_number_of_frames() -> None:
    assert rule_of([BlockFrame(0, "uint8", 1)], []) == "frame-count"
    assert rule_of([], [frame(1)]) == "frame-count"
    few = WireLimits(max_frames=2)
    assert rule_of([BlockFrame(i, "uint8", 1) for i in range(3)], [frame(1)] * 3, few) == "frame-count"


def test_header_check_refuses_one_block_twice() -> None:
    assert rule_of([BlockFrame(5, "uint8", 1), BlockFrame(5, "uint8", 1)], [frame(1)] * 2) == "duplicate-block"


def test_header_check_caps_frames_and_messages() -> None:
    tight = WireLimits(max_frame_nbytes=10, max_message_nbytes=15)
    check_frames([BlockFrame(0, "uint8", 10)], [frame(10)], tight)
    assert rule_of([BlockFrame(0, "uint8", 11)], [frame(11)], tight) == "frame-cap"
    both = [BlockFrame(0, "uint8", 8), BlockFrame(1, "uint8", 8)]
    assert rule_of(both, [frame(8), frame(8)], tight) == "message-cap"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(WireLimits)])
def test_limits_that_would_refuse_every_message_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        WireLimits(**{field: 0})


@pytest.mark.parametrize(
    ("shape", "numel"), [((), 1), ((0,), 0), ((3, 4), 12), ((1,) * 8, 1), ((1 << 24, 1 << 24), 1 << 48)]
)
def test_the_elements_of_a_shape_are_counted(shape: tuple[int, ...], numel: int) -> None:
    assert shape_numel(shape) == numel


@pytest.mark.parametrize(
    "shape",
    [
        (4194305, 4194305, 211106198978564),  # 16 bytes of float32 in arithmetic that wraps at 64 bits
        (1 << 49,),
        (0, 1 << 60),
        (-1,),
        (-2, -2),
        (1,) * 9,
    ],
)
def test_header_check_refuses_impossible_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(RefusedFrameError) as refused:
        shape_numel(shape)
    assert refused.value.rule == "shape"
    spec = ModelSpec((TensorSpec("w", shape, "float32", Kind.PARAMETER),), OptimizerSpec("SGD", ()))
    with pytest.raises(RefusedFrameError, match="shape"):
        check_message(Prepare(1, spec), [])


def test_header_check_refuses_a_model_of_unknown_dtype() -> None:
    spec = ModelSpec((TensorSpec("w", (2,), "complex64", Kind.PARAMETER),), OptimizerSpec("SGD", ()))
    with pytest.raises(RefusedFrameError, match="dtype"):
        check_message(Prepare(1, spec), [])


def make_push(*, incarnation: int = 0, epoch: int = 0, step: int = 0, slot: int = 0) -> Push:
    return Push(1, incarnation, epoch, step, slot, Fence(1, 1), 0, ())


def test_header_check_accepts_the_initial_step() -> None:
    check_message(make_push(step=-1), [])


@pytest.mark.parametrize("change", [{"step": -2}, {"slot": -1}, {"epoch": -1}, {"incarnation": -1}, {"step": 1 << 63}])
def test_header_check_refuses_an_impossible_step(change: dict[str, int]) -> None:
    with pytest.raises(RefusedFrameError) as refused:
        check_message(make_push(**change), [])
    assert refused.value.rule == "range"


def test_header_check_refuses_a_pull_of_an_impossible_incarnation() -> None:
    with pytest.raises(RefusedFrameError, match="range"):
        check_message(Pull(1, -1, 0, 0), [])


def test_frames_without_a_declaration_are_refused() -> None:
    blocks = (BlockFrame(0, "uint8", 1),)
    assert message_blocks(Push(1, 0, 0, 0, 0, Fence(1, 1), 0, blocks)) == blocks
    assert message_blocks(PullReply(1, 0, 0, 0, blocks)) == blocks
    assert message_blocks(Ok(1)) == ()
    with pytest.raises(RefusedFrameError, match="frame-count"):
        check_message(Ok(1), [frame(1)])


@given(
    block=st.integers(-2, 1 << 64),
    dtype=st.sampled_from([*ITEM_NBYTES, "object"]),
    numel=st.integers(-4, 1 << 70),
    nbytes=st.integers(0, 64),
)
def test_a_frame_that_passes_has_exactly_its_declared_size(block: int, dtype: str, numel: int, nbytes: int) -> None:
    try:
        check_frames([BlockFrame(block, dtype, numel)], [frame(nbytes)])
    except RefusedFrameError:
        return
    assert numel * ITEM_NBYTES[dtype] == nbytes
    assert block >= 0
