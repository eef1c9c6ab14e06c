"""Tar shards in the layout of WebDataset: neighbouring members with one stem are a sample."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.files.indexes import Progress, index_of, quiet
from paceline.data.files.places import Files
from paceline.data.sources.base import FileSource, kind_of
from paceline.data.sources.decoding import Undecodable, decode, is_image
from paceline.data.sources.extras import need
from paceline.errors import DataError, UsageError

LARGEST_MEMBER = 1 << 30
LONGEST_NAME = 1024
"""Members with more bytes, or with longer names, are refused."""


class TarShards(FileSource):
    """Samples of tar files: dicts from suffix to what the member holds, decoded by its suffix.

    An image is uint8 (channels, height, width); ``cls`` is an int, ``txt`` a text, ``json`` an object, ``npy`` an
    array; any other suffix is bytes. With `columns`, only these suffixes are read.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        columns: Sequence[str] | None = None,
        *,
        image_size: tuple[int, int] | None = None,
        progress: Progress = quiet,
    ) -> None:
        wanted = None if columns is None else ",".join(columns)
        super().__init__(files, kind_of("tar shards", columns=wanted, image_size=image_size))
        self._index = index_of(files, "tar", lambda said: _index(files, said), root, progress)
        self._suffixes = bytes(self._index["suffixes"]).decode().split("\n")
        self._wanted = None if columns is None else set(columns)
        self._image_size = image_size
        if any(map(is_image, self._suffixes if columns is None else columns)):
            need("PIL.Image", "images")  # now: the packages that decode are in the fingerprint of the data
        for name in columns or ():
            if name not in self._suffixes:
                raise UsageError(
                    f"{files.files[0].name} has no member with the suffix {name!r}: columns= can name "
                    f"{', '.join(self._suffixes)}"
                )

    @property
    def length(self) -> int:
        """The number of samples."""
        return len(self._index["first"]) - 1

    @property
    def block_size(self) -> int:
        """The samples of a typical shard, wherever the shards lie: a copy of the data has the same order."""
        counts = np.bincount(np.asarray(self._index["file"]), minlength=len(self.files))
        return 0 if len(self.files) == 1 else max(1, int(np.median(counts)))

    @property
    def columns(self) -> Mapping[str, str]:
        """The suffixes of the members."""
        return {name: name for name in self._suffixes if self._wanted is None or name in self._wanted}

    def where(self, position: int) -> str:
        """The shard, and the bytes of the sample in it."""
        first = int(self._index["first"][position])
        number = int(self._index["file"][position])
        return f"the sample at byte {int(self._index['offset'][first])} of {self.files.files[number].name}"

    def read(self, positions: Sequence[int]) -> Sequence[dict[str, Any]]:
        """As `FileSource.read`."""
        return [self._sample(int(position)) for position in positions]

    def _sample(self, position: int) -> dict[str, Any]:
        number = int(self._index["file"][position])
        first, last = (int(self._index["first"][position + k]) for k in (0, 1))
        sample: dict[str, Any] = {}
        for k in range(first, last):
            suffix = self._suffixes[int(self._index["suffix"][k])]
            if self._wanted is not None and suffix not in self._wanted:
                continue
            start = int(self._index["offset"][k])
            content = self.files.read(number, start, start + int(self._index["size"][k]))
            try:
                sample[suffix] = decode(suffix, content, self._image_size)
            except Undecodable as error:
                raise self.bad(position, f"its member .{suffix} is damaged: {error}") from None
        missing = (self._wanted or set()) - set(sample)
        if missing:
            raise self.bad(position, f"it has no member .{min(missing)}")
        return sample


def _index(files: Files, said: Progress) -> dict[str, npt.NDArray[Any]]:
    """The columns of the index: the members of each sample, with the place of each in its file."""
    suffixes: dict[str, int] = {}
    first, of_file = [0], []
    members: list[tuple[int, int, int]] = []
    done, total = 0, sum(file.size for file in files.files)
    for number, file in enumerate(files.files):
        stem, seen = None, set[str]()
        for name, offset, size in _members(files, number):
            folder, _, base = name.rpartition("/")
            head, _, suffix = base.partition(".")
            mine = f"{folder}/{head}"
            if mine != stem or suffix in seen:
                if stem is not None:
                    first.append(len(members))
                    of_file.append(number)
                stem, seen = mine, set()
            seen.add(suffix)
            members.append((suffixes.setdefault(suffix, len(suffixes)), offset, size))
            said(done + offset, total)
        if stem is not None:
            first.append(len(members))
            of_file.append(number)
        done += file.size
        said(done, total)
    if not members:
        raise DataError(f"{files.files[0].name}: no file in the archive. Give tar shards with the members of samples")
    table = np.array(members, dtype=np.int64)
    return {
        "first": np.array(first, dtype=np.int64),
        "file": np.array(of_file, dtype=np.int32),
        "suffix": table[:, 0].astype(np.int32),
        "offset": table[:, 1].copy(),
        "size": table[:, 2].copy(),
        "suffixes": np.frombuffer("\n".join(suffixes).encode(), dtype=np.uint8),
    }


def _members(files: Files, number: int) -> list[tuple[str, int, int]]:
    """(name, offset of the content, size) of each file of an archive.

    Raises:
        DataError: the archive is cut off or damaged, or a member is too large.
    """
    file = files.files[number]
    found = []
    try:
        with files.opened(number) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                if member.issparse():
                    raise DataError(f"{file.name}: the member {member.name[:100]} is sparse: write it as a whole file")
                if len(member.name) > LONGEST_NAME or "\n" in member.name:
                    raise DataError(
                        f"{file.name}: a member has a name of more than {LONGEST_NAME} characters, or of lines"
                    )
                if member.size > LARGEST_MEMBER:
                    raise DataError(f"{file.name}: the member {member.name} has more than {LARGEST_MEMBER >> 20} MiB")
                if member.offset_data + member.size > file.size:
                    raise DataError(f"{file.name} is cut off in the member {member.name}: fetch or write it again")
                found.append((member.name, member.offset_data, member.size))
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{file.name} is no tar file, or it is cut off: {error}. Fetch or write it again") from None
    return found
