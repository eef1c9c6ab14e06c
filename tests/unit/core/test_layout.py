"""How tensors are cut into blocks."""

from __future__ import annotations

import pytest

from paceline.core.layout import ALIGN, cut, target_nbytes
from paceline.types import ITEM_NBYTES, BlockSpec, Kind, TensorSpec


def tensor(name: str, numel: int, dtype: str = "float32", kind: Kind = Kind.PARAMETER) -> TensorSpec:
    return TensorSpec(name, (numel,), dtype, kind, 0)


def check(tensors: list[TensorSpec], blocks: tuple[BlockSpec, ...]) -> None:
    """Check that every element of every tensor is in exactly one block and that pieces do not overlap."""
    at = [0] * len(tensors)
    for number, block in enumerate(blocks):
        assert block.index == number
        assert block.nbytes == block.numel * ITEM_NBYTES[block.dtype]
        end = 0
        for piece in block.pieces:
            spec = tensors[piece.tensor]
            assert (spec.kind, spec.dtype) == (block.kind, block.dtype)
            assert piece.start == at[piece.tensor]
            assert piece.start % ALIGN == 0
            assert piece.offset % ALIGN == 0
            assert piece.offset >= end
            at[piece.tensor] += piece.numel
            end = piece.offset + piece.numel
        assert end <= block.numel
    assert at == [t.numel for t in tensors]


def test_a_large_tensor_is_cut_at_multiples_of_64() -> None:
    tensors = [tensor("a", 100_001)]
    blocks = cut(tensors, 1 << 16)
    check(tensors, blocks)
    assert [b.nbytes for b in blocks[:-1]] == [1 << 16] * 6
    assert [p.start for b in blocks for p in b.pieces] == [16384 * i for i in range(7)]


def test_small_tensors_share_a_block_and_keep_their_order() -> None:
    tensors = [tensor("a", 10), tensor("b", 64), tensor("c", 65)]
    (block,) = cut(tensors)
    check(tensors, (block,))
    assert [p.offset for p in block.pieces] == [0, 64, 128]
    assert block.numel == 256


def test_tensors_of_different_kind_or_dtype_never_share_a_block() -> None:
    tensors = [
        tensor("a", 10),
        tensor("b", 10, "bfloat16"),
        tensor("c", 10, "float32"),
        tensor("d", 10, "float32", Kind.FROZEN),
        tensor("e", 10, "float32", Kind.MEAN),
        tensor("f", 1, "int64", Kind.LAST),
    ]
    blocks = cut(tensors)
    check(tensors, blocks)
    assert [(b.kind, b.dtype) for b in blocks] == [(t.kind, t.dtype) for t in tensors]


@pytest.mark.parametrize("dtype", sorted(ITEM_NBYTES))
def test_a_tensor_is_cut_into_blocks_of_the_given_size(dtype: str) -> None:
    tensors = [tensor("a", 300_000, dtype), tensor("b", 7, dtype), tensor("c", 50_000, dtype)]
    blocks = cut(tensors, 1 << 17)
    check(tensors, blocks)
    assert all(b.nbytes <= 1 << 17 for b in blocks)
    assert all(b.nbytes == 1 << 17 for b in blocks[:-1])


def test_a_scalar_takes_one_block_and_empty_tensors_take_none() -> None:
    tensors = [
        tensor("a", 0),
        TensorSpec("b", (), "float32", Kind.PARAMETER, 0),
        TensorSpec("c", (3, 0), "float32", Kind.MEAN),
    ]
    blocks = cut(tensors)
    check(tensors, blocks)
    assert [b.numel for b in blocks] == [64]
    assert cut([]) == ()


def test_small_models_have_smaller_blocks_so_that_servers_can_share_them() -> None:
    assert target_nbytes([tensor("a", 1000)]) == 1 << 16
    assert target_nbytes([tensor("a", 1 << 20)]) == 1 << 19
    assert target_nbytes([tensor("a", 1 << 26)]) == 1 << 20
