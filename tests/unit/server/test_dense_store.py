"""Dense blocks: sums in slot order, and versions that do not change under a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paceline.blocks.chunks import LentFrame
from paceline.blocks.tensors import bytes_of, piece_of, tensor_of
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, BlockSpec, Commit, Hyper, Kind, ModelSpec, OptimizerSpec, TensorSpec

HYPER: Hyper = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0).defaults,)
TENSORS = (
    TensorSpec("a", (3,), "float32", Kind.PARAMETER, 0),
    TensorSpec("b", (2,), "float32", Kind.PARAMETER, 0),
    TensorSpec("mean", (2,), "float32", Kind.MEAN),
    TensorSpec("constant", (2,), "float32", Kind.MEAN),
    TensorSpec("count", (1,), "int64", Kind.LAST),
)
A, B, MEAN, CONSTANT, COUNT = range(5)
Values = Mapping[int, Sequence[float]]
START: Values = {A: [1.0, 2.0, 3.0], B: [4.0, 5.0], MEAN: [0.5, 0.25], CONSTANT: [0.1, 0.7], COUNT: [10]}


class Reader:
    """A delivery that the test ends."""

    done = False


def opened(clip_norm: float | None = None) -> tuple[DenseStore, tuple[BlockSpec, ...]]:
    spec = ModelSpec(TENSORS, OptimizerSpec("SGD", HYPER), clip_norm)
    blocks = cut(TENSORS)
    assert [b.kind for b in blocks] == [Kind.PARAMETER, Kind.MEAN, Kind.LAST]
    store = DenseStore()
    store.open(spec, blocks)
    store.sums.add(SumKey(INIT_STEP, None), SealedAttempt(1.0, frozenset(), payloads(blocks, START)))
    commit(store, 0, INIT_STEP)
    return store, blocks


def payloads(blocks: Sequence[BlockSpec], values: Values) -> dict[int, object]:
    """Frames of the blocks that have any of `values`; missing elements are -0.0."""
    frames: dict[int, object] = {}
    for block in blocks:
        if not any(p.tensor in values for p in block.pieces):
            continue
        flat = torch.full((block.numel,), -0.0).to(getattr(torch, block.dtype))
        for piece in block.pieces:
            if piece.tensor in values:
                piece_of(flat, piece).copy_(torch.tensor(values[piece.tensor]))
        frames[block.index] = bytes_of(flat)
    return frames


def commit(store: DenseStore, version: int, step: int, scale: float = 1.0) -> None:
    store.apply(SumKey(step, None), Commit(0, version, step, (), HYPER, scale, False, 0, 0))


def values(store: DenseStore, blocks: Sequence[BlockSpec], version: int) -> dict[int, list[float]]:
    frames, parts = store.versions.read(version, -1, None)
    found: dict[int, list[float]] = {}
    for frame, part in zip(frames, parts, strict=True):
        assert isinstance(part, LentFrame)
        flat = tensor_of(part.frame, frame.dtype)
        for piece in blocks[frame.block].pieces:
            found[piece.tensor] = piece_of(flat, piece).tolist()
    return found


def f32(*numbers: float) -> list[float]:
    """Numbers rounded to float32."""
    return torch.tensor(numbers).tolist()


def test_the_initial_weights_are_version_0() -> None:
    store, blocks = opened()
    expected = {k: v if k == COUNT else f32(*v) for k, v in START.items()}
    assert values(store, blocks, 0) == expected


def test_slots_are_weighted_and_absent_tensors_are_left_out() -> None:
    store, blocks = opened()
    key = SumKey(0, None)
    everything: Values = {A: [1.0, 1.0, 1.0], B: [2.0, 2.0], MEAN: [1.0, 1.0], CONSTANT: START[CONSTANT], COUNT: [11]}
    store.sums.add(key, SealedAttempt(1.0, frozenset({CONSTANT}), payloads(blocks, everything)))
    store.sums.add(
        key, SealedAttempt(0.5, frozenset({B, MEAN, CONSTANT}), payloads(blocks, {A: [4.0, 4.0, 4.0], COUNT: [12]}))
    )
    store.sums.add(key, SealedAttempt(0.0, frozenset(), {}))  # a slot that was sealed empty
    commit(store, 1, 0)
    found = values(store, blocks, 1)
    grad_a = (torch.tensor([1.0] * 3) + 0.5 * torch.tensor([4.0] * 3)) / 1.5
    assert found[A] == (torch.tensor(START[A]) - grad_a).tolist()
    assert found[B] == (torch.tensor(START[B]) - torch.tensor([2.0] * 2) / 1.5).tolist()
    assert found[MEAN] == ((torch.tensor([1.0] * 2) + 0.5 * torch.tensor(START[MEAN])) / 1.5).tolist()
    assert found[CONSTANT] == f32(0.1, 0.7), (
        "equal buffers are not averaged: their rounded mean may differ from the value"
    )
    assert found[COUNT] == [12], "an integer buffer has the value of the last slot that changed it"


def test_a_step_of_empty_slots_changes_nothing() -> None:
    store, blocks = opened()
    before = values(store, blocks, 0)
    store.sums.add(SumKey(0, None), SealedAttempt(0.0, frozenset(), {}))
    commit(store, 1, 0)
    assert values(store, blocks, 1) == before


def test_memory_is_not_written_while_it_is_read() -> None:
    store, blocks = opened()
    _, (part, *_) = store.versions.read(0, -1, [0])
    assert isinstance(part, LentFrame)
    reader = Reader()
    part.buffer.lend(reader)
    seen = bytes(part.frame)
    for step in range(4):
        store.sums.add(
            SumKey(step, None), SealedAttempt(1.0, frozenset(), payloads(blocks, {A: [1.0] * 3, B: [1.0] * 2}))
        )
        commit(store, step + 1, step)
        assert bytes(part.frame) == seen, f"step {step} wrote under a reader"
    reader.done = True
    for step in range(4, 7):
        store.sums.add(
            SumKey(step, None), SealedAttempt(1.0, frozenset(), payloads(blocks, {A: [1.0] * 3, B: [1.0] * 2}))
        )
        commit(store, step + 1, step)
    assert bytes(part.frame) != seen, "memory is reused once its reader is done"


def test_a_kept_version_stays_readable_until_it_is_released() -> None:
    store, blocks = opened()
    store.versions.keep(0)
    before = values(store, blocks, 0)
    for step in range(4):
        store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset({B}), payloads(blocks, {A: [1.0] * 3})))
        commit(store, step + 1, step)
    assert values(store, blocks, 0) == before
    assert values(store, blocks, 4)[A] == [-3.0, -2.0, -1.0]
    store.versions.release(0)
    store.versions.release(17)


def test_a_reader_gets_only_the_blocks_that_changed() -> None:
    store, blocks = opened()
    store.sums.add(SumKey(0, None), SealedAttempt(1.0, frozenset({A, B}), payloads(blocks, {COUNT: [11]})))
    commit(store, 1, 0)
    store.sums.add(SumKey(1, None), SealedAttempt(1.0, frozenset(), payloads(blocks, {A: [1.0] * 3, B: [1.0] * 2})))
    commit(store, 2, 1)
    assert [f.block for f in store.versions.read(2, -1, None)[0]] == [0, 1, 2]
    assert [f.block for f in store.versions.read(2, 0, None)[0]] == [0, 2]
    assert [f.block for f in store.versions.read(2, 1, None)[0]] == [0]
    assert [f.block for f in store.versions.read(2, 2, None)[0]] == []
    assert [f.block for f in store.versions.read(2, -1, [2])[0]] == [2]


def test_partial_norms_are_those_of_the_mean_gradient() -> None:
    store, blocks = opened(clip_norm=1.0)
    key = SumKey(0, None)
    store.sums.add(key, SealedAttempt(1.0, frozenset(), payloads(blocks, {A: [3.0, 0.0, 0.0], B: [0.0, 1.0]})))
    store.sums.add(key, SealedAttempt(1.0, frozenset(), payloads(blocks, {A: [3.0, 0.0, 0.0], B: [0.0, 7.0]})))
    assert store.sums.partials(key) == ((0, 9.0 + 16.0),)
    commit(store, 1, 0, scale=0.5)
    assert values(store, blocks, 1)[A] == [1.0 - 1.5, 2.0, 3.0]


def test_attempts_with_sums_of_their_own_do_not_mix() -> None:
    from paceline.types import Fence

    store, blocks = opened()
    for n, amount in enumerate((1.0, 100.0)):
        store.sums.add(SumKey(0, Fence(1, n)), SealedAttempt(1.0, frozenset({B}), payloads(blocks, {A: [amount] * 3})))
    store.apply(SumKey(0, Fence(1, 0)), Commit(0, 1, 0, (Fence(1, 0),), HYPER, 1.0, False, 0, 0))
    store.sums.drop(SumKey(0, Fence(1, 1)))
    assert values(store, blocks, 1)[A] == [0.0, 1.0, 2.0]
