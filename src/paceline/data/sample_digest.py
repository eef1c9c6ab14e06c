"""A short digest of one sample: equal samples have equal digests in every process, on every host.

Only content goes into it, never an address, a hash or an order that differs between processes. An object of a class
that is not known here counts only by the name of its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_NBYTES = 8  # of a digest
_DEPTH = 8  # what is nested deeper counts by its class only
_END = 1 << 19  # of a large array, this many bytes at each end count


def sample_digest(sample: Any) -> str:
    """The digest of a sample: numbers, texts, tensors, arrays, images of PIL, collections and dataclasses of them."""
    return _digest(sample, _DEPTH).hex()


def _digest(value: Any, depth: int) -> bytes:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    out = blake2b(kind.encode(), digest_size=_NBYTES)
    for part in _contents(value, depth):
        out.update(len(part).to_bytes(8, "little"))
        out.update(part)
    return out.digest()


def _contents(value: Any, depth: int) -> Iterable[bytes]:
    if isinstance(value, bytes | bytearray):
        return _ends(memoryview(value))
    if value is None or isinstance(value, str | bool | int | float | complex):
        return [repr(value).encode() if not isinstance(value, str) else value.encode("utf-8", "surrogatepass")]
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value), depth)
    if type(value).__module__.startswith("PIL."):
        return _image(value)
    if depth <= 0:
        return []
    if isinstance(value, Mapping):  # in the order of the digests: the order of a mapping may differ
        return sorted(_digest(k, depth - 1) + _digest(v, depth - 1) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return sorted(_digest(v, depth - 1) for v in value)
    if isinstance(value, list | tuple):
        return [_digest(v, depth - 1) for v in value]
    if dataclasses.is_dataclass(value):
        return [_digest(getattr(value, field.name, None), depth - 1) for field in dataclasses.fields(value)]
    return []


def _tensor(tensor: torch.Tensor) -> Iterable[bytes]:
    named = [f"{tensor.dtype} {tuple(tensor.shape)}".encode()]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return named
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return [*named, *_ends(plain.view(torch.uint8).numpy().data)]


def _array(array: np.ndarray[Any, Any], depth: int) -> Iterable[bytes]:
    named = [f"{array.dtype.str} {array.shape}".encode()]
    if array.dtype.names is not None:  # field by field: bytes between the fields have no meaning
        return [*named, *(part for name in array.dtype.names for part in _array(array[name], depth))]
    if array.dtype.hasobject:
        return [*named, *(_digest(item, depth - 1) for item in array.reshape(-1)[:1000])] if depth > 0 else named
    if array.dtype.char in "gG":  # a long double has bytes without a meaning
        array = array.astype(np.complex128 if array.dtype.char == "G" else np.float64)
    return [*named, *_ends(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)]


def _image(image: Any) -> Iterable[bytes]:
    if not callable(getattr(image, "tobytes", None)):
        return []
    return [f"{getattr(image, 'mode', '')} {getattr(image, 'size', '')}".encode(), *_ends(memoryview(image.tobytes()))]


def _ends(content: memoryview) -> Iterable[bytes]:
    if content.nbytes <= 2 * _END:
        return [bytes(content)]
    return [str(content.nbytes).encode(), bytes(content[:_END]), bytes(content[-_END:])]
