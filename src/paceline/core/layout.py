"""The layout of a model: its tensors cut into blocks. Arithmetic only; `paceline.blocks.tensors` handles the memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.types import ITEM_NBYTES, BlockSpec, Piece, TensorSpec

ALIGN = 64
"""A tensor is cut only at multiples of this many elements, because torch's fused optimizers round the last elements of
a tensor differently."""

_LARGEST, _SMALLEST, _FEWEST = 1 << 20, 1 << 16, 8


def target_nbytes(tensors: Sequence[TensorSpec]) -> int:
    """The size of a block in bytes: 1 MiB, or less for a small model, so that several servers can share the model."""
    total = sum(t.numel * ITEM_NBYTES[t.dtype] for t in tensors)
    return max(_SMALLEST, min(_LARGEST, total // _FEWEST))


def cut(tensors: Sequence[TensorSpec], nbytes: int | None = None) -> tuple[BlockSpec, ...]:
    """Cut `tensors`, in their order, into blocks of about `nbytes`, each of one kind and dtype.

    The result depends only on the arguments, so every role and every later run cuts a model in the same way.
    """
    nbytes = nbytes or target_nbytes(tensors)
    blocks: list[BlockSpec] = []
    pieces: list[Piece] = []
    fill = 0
    current: TensorSpec | None = None

    def close() -> None:
        nonlocal fill, pieces
        if current is not None and pieces:
            size = fill * ITEM_NBYTES[current.dtype]
            blocks.append(BlockSpec(len(blocks), current.kind, current.dtype, fill, size, tuple(pieces)))
        fill, pieces = 0, []

    for number, tensor in enumerate(tensors):
        if current is None or (tensor.kind, tensor.dtype) != (current.kind, current.dtype):
            close()
        current = tensor
        capacity = max(ALIGN, nbytes // ITEM_NBYTES[tensor.dtype] // ALIGN * ALIGN)
        start = 0
        while start < tensor.numel:
            if fill >= capacity:
                close()
            run = min(tensor.numel - start, capacity - fill)
            pieces.append(Piece(number, start, run, fill))
            start += run
            fill += -(-run // ALIGN) * ALIGN
    close()
    return tuple(blocks)


def digest_header(name: str, dtype: str, shape: Iterable[int]) -> bytes:
    """The bytes that precede the content of a tensor when the digest of a model is computed."""
    return f"{name}\0{dtype}\0{'x'.join(map(str, shape))}\0".encode()
