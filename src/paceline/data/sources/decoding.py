"""Decodes the parts of samples by their suffix, within bounds."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.sources.extras import need

MAX_PIXELS = 64 << 20
"""The pixels of the largest image that is decoded."""
MAX_NBYTES = 1 << 30
"""The bytes of the largest decoded array."""

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")


class Undecodable(Exception):
    """The content of a part is damaged, or it is too large; the message says which."""


def image(content: bytes, mode: str = "RGB", size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Decode an image to uint8 of the shape (channels, height, width), scaled to `size` (height, width) if given.

    Raises:
        Undecodable: it is damaged, or has more than `MAX_PIXELS` pixels.
    """
    pil = need("PIL.Image", "images")
    try:
        with pil.open(io.BytesIO(content)) as opened:
            if math.prod(opened.size) > MAX_PIXELS:
                raise Undecodable(f"an image of {opened.size[0]} × {opened.size[1]} pixels is too large")
            converted = opened.convert(mode)
            if size is not None and converted.size != (size[1], size[0]):
                converted = converted.resize((size[1], size[0]), pil.Resampling.BILINEAR)
            pixels = np.array(converted, dtype=np.uint8)
    except Undecodable:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise Undecodable(f"it is no image that Pillow reads ({type(error).__name__})") from None
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def array(content: bytes) -> npt.NDArray[Any]:
    """Decode a file of NumPy, without pickle."""
    stream = io.BytesIO(content)
    try:
        shape, _, dtype = npy_header(stream)
        if math.prod(shape) * dtype.itemsize > MAX_NBYTES:
            raise Undecodable(f"an array of the shape {shape} is too large")
        stream.seek(0)
        found: npt.NDArray[Any] = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Undecodable(f"it is no array of NumPy: {error}") from None
    return found


def npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, in the order of Fortran, dtype) of a ``.npy`` file. Arrays of objects are refused.

    Raises:
        ValueError: it is none, or an array of objects.
    """
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which needs pickle")
    return shape, fortran, dtype


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"it is no UTF-8 text: {error.reason}") from None


def _number(content: bytes) -> int:
    try:
        return int(content)
    except ValueError:
        raise Undecodable(f"{content[:30]!r} is no whole number") from None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"it is no JSON: {error}") from None


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "txt": _text,
    "cls": _number,
    "cls2": _number,
    "index": _number,
    "json": _json,
    "npy": array,
}


def is_image(suffix: str) -> bool:
    """Whether a part with this suffix, without the dot, is decoded as an image."""
    return f".{_last(suffix)}" in IMAGES


def _last(suffix: str) -> str:
    return suffix.rsplit(".", 1)[-1].lower()


def decode(suffix: str, content: bytes, image_size: tuple[int, int] | None) -> Any:
    """Decode a part by its suffix without the dot, such as ``jpg``; bytes if the suffix is not known.

    Raises:
        Undecodable: the content is damaged, or too large.
    """
    if is_image(suffix):
        return image(content, size=image_size)
    decoder = _DECODERS.get(_last(suffix))
    return content if decoder is None else decoder(content)
