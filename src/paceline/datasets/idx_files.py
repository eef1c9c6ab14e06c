"""The files of a published data set in the layout of MNIST. They are decoded, and verified before use."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "test"]

SIDE = 28

Content = Mapping[str, bytes]
"""The decoded, verified content of each file by name, without its idx header."""


class ProviderError(Exception):
    """A provider cannot supply the data; the message says why. The next provider is tried then."""


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One gzipped idx file: its name, the shape that its header must declare, and the SHA-256 of its decoded content.

    The hash is of the decoded content, because the same data is published under different gzip headers.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Release:
    """The four files of one published data set in the layout of MNIST."""

    name: str
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile

    def files(self, split: Split | None) -> tuple[IdxFile, ...]:
        """The files of one split; all four without a split."""
        train = (self.train_images, self.train_labels)
        test = (self.test_images, self.test_labels)
        return {"train": train, "test": test, None: train + test}[split]


FASHION_MNIST = Release(
    name="fashion-mnist",
    train_images=IdxFile(
        "train-images-idx3-ubyte.gz",
        (60_000, SIDE, SIDE),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    train_labels=IdxFile(
        "train-labels-idx1-ubyte.gz",
        (60_000,),
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    test_images=IdxFile(
        "t10k-images-idx3-ubyte.gz",
        (10_000, SIDE, SIDE),
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    test_labels=IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        (10_000,),
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


def read_files(directory: Path, files: tuple[IdxFile, ...]) -> Content:
    """Decode and verify `files`; the result maps each name to its bytes after the idx header.

    Raises:
        ProviderError: a file is missing or unreadable, or has another header or content than it must have.
    """
    return {file.name: _read_idx(directory / file.name, file) for file in files}


def _read_idx(path: Path, file: IdxFile) -> bytes:
    try:
        # At most one byte beyond the right size is decoded, so a gzip bomb does no harm.
        header = struct.pack(f">HBB{len(file.shape)}I", 0, 0x08, len(file.shape), *file.shape)
        size = len(header) + math.prod(file.shape)
        with gzip.open(path) as stream:
            raw = stream.read(size + 1)
    except FileNotFoundError:
        raise ProviderError(f"{path.name} is missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ProviderError(f"{path.name} cannot be read: {error}") from None
    if raw[:4] != header[:4]:
        raise ProviderError(f"{path.name} is not an idx file of bytes with {len(file.shape)} dimensions")
    if raw[: len(header)] != header:
        raise ProviderError(f"{path.name} does not declare the shape {file.shape}")
    if len(raw) != size:
        more = "more" if len(raw) > size else "fewer"
        raise ProviderError(f"{path.name} holds {more} bytes than its shape {file.shape} needs")
    digest = hashlib.sha256(raw).hexdigest()
    if digest != file.sha256:
        raise ProviderError(f"{path.name} has SHA-256 {digest} instead of {file.sha256}")
    return raw[len(header) :]
