"""Codecs: how the elements of a block become the bytes of a frame. `CODECS` lists those that a frame may declare.

A new codec is one class with the methods of `Codec`, and one entry in `CODECS`. The transport checks the size of every
frame (`decoded_nbytes`) and decodes it (`decode_frames`) before a role sees it, so all code above the transport works
with decoded bytes: `numel` elements of `dtype`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.errors import RefusedFrameError
from paceline.messages import BlockFrame
from paceline.types import ITEM_NBYTES


class Codec(Protocol):
    """One way to write elements as bytes. Methods must not keep references to their arguments."""

    def fits(self, numel: int, item_nbytes: int, encoded_nbytes: int) -> bool:
        """Whether `numel` elements of `item_nbytes` bytes each may have been encoded as `encoded_nbytes` bytes."""
        ...

    def encode(self, dtype: str, content: memoryview) -> memoryview:
        """Encode the elements in `content` as a frame."""
        ...

    def decode(self, dtype: str, numel: int, frame: memoryview) -> memoryview:
        """Decode the elements in `frame`, whose size `fits` has accepted, to a writable view of contiguous bytes.

        Raises:
            RefusedFrameError: rule ``codec``: this codec did not make the bytes of `frame`.
        """
        ...


class Raw:
    """The elements as they lie in memory. Neither direction copies."""

    def fits(self, numel: int, item_nbytes: int, encoded_nbytes: int) -> bool:
        """See `Codec.fits`. The frame must have exactly the bytes of the elements."""
        return numel * item_nbytes == encoded_nbytes

    def encode(self, dtype: str, content: memoryview) -> memoryview:
        """See `Codec.encode`. Returns `content` itself."""
        return content

    def decode(self, dtype: str, numel: int, frame: memoryview) -> memoryview:
        """See `Codec.decode`. Returns `frame` itself."""
        return frame


RAW = "raw"
CODECS: dict[str, Codec] = {RAW: Raw()}
"""Every codec that a frame may declare, by the name in `BlockFrame.codec`."""


def item_nbytes(dtype: str) -> int:
    """The size of one element in bytes.

    Raises:
        RefusedFrameError: rule ``dtype``: elements of this dtype cannot be sent.
    """
    try:
        return ITEM_NBYTES[dtype]
    except KeyError:
        raise RefusedFrameError("dtype", f"{dtype[:40]!r} is not one of {', '.join(ITEM_NBYTES)}") from None


def decoded_nbytes(declared: BlockFrame, encoded_nbytes: int) -> int:
    """The decoded size, in bytes, of a frame that has `encoded_nbytes` bytes and is declared as `declared`.

    Allocates nothing.

    Raises:
        RefusedFrameError: rule ``codec`` for an unknown codec, ``dtype``, ``numel``, or ``frame-size`` when the codec
            cannot have made a frame of this size from these elements.
    """
    size = ITEM_NBYTES.get(declared.dtype)
    numel = declared.numel
    if size and declared.codec == RAW and numel * size == encoded_nbytes:
        return encoded_nbytes  # a short cut, because almost every frame is raw
    codec = CODECS.get(declared.codec)
    if codec is None:
        known = ", ".join(CODECS)
        raise RefusedFrameError("codec", f"{declared.codec[:40]!r} of block {declared.block} is not one of {known}")
    size = item_nbytes(declared.dtype)
    if numel < 0:
        raise RefusedFrameError("numel", f"block {declared.block} must declare 0 or more elements, not {numel}")
    if not codec.fits(numel, size, encoded_nbytes):
        raise RefusedFrameError(
            "frame-size",
            f"block {declared.block} declares {declared.numel} x {declared.dtype} as {declared.codec} and has "
            f"{encoded_nbytes} bytes",
        )
    return numel * size


def decode(declared: BlockFrame, frame: memoryview) -> memoryview:
    """Decode the elements in `frame`, whose size `decoded_nbytes` has accepted. Returns `frame` itself if it is raw.

    Raises:
        RefusedFrameError: rule ``codec``: the declared codec did not make the bytes of `frame`.
    """
    content = CODECS[declared.codec].decode(declared.dtype, declared.numel, frame)
    if content.nbytes != declared.nbytes:
        raise RefusedFrameError(
            "codec", f"{declared.codec} decoded block {declared.block} to {content.nbytes} bytes, not {declared.nbytes}"
        )
    return content


def decode_frames(blocks: Sequence[BlockFrame], frames: Sequence[memoryview]) -> Sequence[memoryview]:
    """Decode all frames of one message. Returns `frames` itself if all of them are raw.

    Raises:
        RefusedFrameError: see `decode`.
    """
    for declared in blocks:
        if declared.codec != RAW:
            return tuple(decode(declared, frame) for declared, frame in zip(blocks, frames, strict=True))
    return frames
