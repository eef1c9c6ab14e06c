"""Conversion between tensors, flat blocks and bytes, without a copy where the alignment allows it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from paceline.core.layout import digest_header
from paceline.types import ITEM_NBYTES, BlockSpec, Piece

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_NBYTES}
"""Every dtype that messages may carry."""

DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared with it."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def tensor_of(frame: memoryview, dtype: str) -> torch.Tensor:
    """A flat tensor over the bytes of `frame`, which are copied only if they are read-only or not aligned.

    The caller must not write to the tensor unless it owns the frame.
    """
    if not frame.nbytes:
        return torch.empty(0, dtype=DTYPES[dtype])
    if frame.readonly:
        frame = memoryview(bytearray(frame))
    raw = torch.frombuffer(frame, dtype=torch.uint8)
    if raw.data_ptr() % ITEM_NBYTES[dtype]:
        raw = raw.clone()
    return raw.view(DTYPES[dtype])


def new_block(block: BlockSpec) -> torch.Tensor:
    """New memory for one block, filled with zeros."""
    return torch.zeros(block.numel, dtype=DTYPES[block.dtype])


def piece_of(flat: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The elements of `piece` inside its block's flat tensor (a view)."""
    return flat[piece.offset : piece.offset + piece.numel]


def clean_name(name: str) -> str:
    """A parameter's name without the prefix of `torch.compile`."""
    return name.replace("_orig_mod.", "")


def digest(model: torch.nn.Module) -> str:
    """The digest of a model's weights, equal to the digest that the summary of a run shows.

    Parameters first, then buffers, each in the model's order; a tied parameter counts once.
    """
    out = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        out.update(digest_header(clean_name(name), DTYPE_NAMES[tensor.dtype], tensor.shape))
        out.update(bytes_of(tensor.detach().cpu().contiguous()))
    return out.hexdigest()


def as_parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    """`tensor` as a parameter that a `torch.optim` class accepts; autograd computes no gradient for it."""
    return torch.nn.Parameter(tensor, requires_grad=False)
