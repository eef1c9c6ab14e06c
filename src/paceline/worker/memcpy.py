"""Copies and comparisons of memory by address.

Around a small model's turn little of torch is in the processor's caches, and calling one of its operators takes longer
than copying a whole tensor: with these, a turn of LeNet takes half the time to stage and a third of it to fill.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch

# The interpreter's lock is kept: giving it up for some microseconds costs more than it gives to others.
_libc = ctypes.PyDLL(None)

copy: Callable[[int, int, int], None] = _libc.memcpy
"""copy(to, from, nbytes): as C's memcpy."""

compare: Callable[[int, int, int], int] = _libc.memcmp
"""0 where two runs of memory hold the same bytes: as C's memcmp."""

for _function in (_libc.memcpy, _libc.memcmp):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = None


def address_of(frame: memoryview) -> int:
    """Where the bytes of `frame` lie; good for as long as it is held."""
    if frame.readonly or not frame.nbytes:
        return int(np.frombuffer(frame, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(frame))


def plain(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the elements lie at `data_ptr()` as they are, in order and as `dtype`."""
    return tensor.is_cpu and tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg()


def flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements of `tensor` in order and as `dtype`, plain: without a copy where it is so already."""
    tensor = tensor.detach()
    if not plain(tensor, dtype):
        tensor = tensor.to("cpu", dtype).resolve_neg().contiguous()
    return tensor.view(-1)
