"""`paceline.data.open`: the source of an address, by its scheme and its suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.load import cache_dir
from paceline.data.files.cache import BlockCache
from paceline.data.files.indexes import Progress, quiet
from paceline.data.files.places import Files, list_files, shown
from paceline.data.sources.arrays import NpyRows, TokenWindows
from paceline.data.sources.base import WINDOW_NBYTES, FileSource
from paceline.data.sources.decoding import IMAGES
from paceline.data.sources.images import ImageFolder
from paceline.data.sources.lines import CsvSource, JsonLinesSource, TextLines
from paceline.data.sources.parquet import RowGroups
from paceline.data.sources.tar import TarShards
from paceline.errors import DataError, UsageError

CACHE_BYTES = 10 << 30
"""The bytes of remote files that the processes of a host keep on its disk together, if `cache_bytes` says nothing."""

FORMATS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "jsonl": (".jsonl", ".ndjson"),
    "tar": (".tar",),
    "npy": (".npy",),
    "text": (".txt", ".text"),
    "images": IMAGES,
}
"""The formats, and the suffixes of their files."""

_TAKES = {
    "columns": ("parquet", "arrow", "csv", "tsv", "jsonl", "tar"),
    "dtypes": ("csv", "tsv"),
    "window": ("npy", "text"),
    "image_size": ("tar", "images"),
}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tgz")


def open(
    url: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    image_size: tuple[int, int] | None = None,
    checksums: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
    memory_bytes: int = WINDOW_NBYTES,
    progress: Progress = quiet,
) -> FileSource:
    """Open data by position. `url` is a file, a folder, a pattern such as ``s3://bucket/train/*.parquet``, or several.

    Args:
        url: a path, or an address with a scheme that fsspec knows.
        format: one of `FORMATS`, if the suffix of the files does not say it.
        columns: the columns of a table, or the suffixes of the members of tar shards, that are read.
        dtypes: the types of columns of CSV: int64, float64, float32 or str.
        window: cut text or tokens into windows of this many tokens.
        stride: the tokens from one window to the next, by default `window`.
        image_size: (height, width) to which images are scaled.
        checksums: the SHA-256 of files by name, checked now.
        storage_options: what fsspec needs for this scheme, such as credentials. They stay in this process.
        cache_bytes: the limit of the cache on the disk of this host, for remote files; 0 for no cache.
        memory_bytes: about how many decoded bytes a process keeps.
        progress: ``f(done, total)`` is called while an index is made.

    Raises:
        DataUnreachableError: there is no such file, or the storage does not answer.
        DataError: a file is damaged, or files do not fit together; the message names them.
        UsageError: the format is not known, an argument does not fit it, or a package is missing.
    """
    given = [url] if isinstance(url, str | Path) else list(url)
    if not given:
        raise UsageError("paceline.data.open needs an address")
    cache = BlockCache(cache_dir() / "data", cache_bytes) if cache_bytes > 0 else None
    suffixes = [suffix for known in FORMATS.values() for suffix in known] if format is None else FORMATS.get(format, ())
    files = list_files(given, suffixes, storage_options, cache)
    chosen = _format(files, shown(str(given[0]))) if format is None else format
    arguments = {"columns": columns, "dtypes": dtypes, "window": window, "stride": stride, "image_size": image_size}
    _check(chosen, arguments)
    if checksums:
        files.verify(checksums)
    source = _makers(files, cache_dir() / "indexes", memory_bytes, progress, arguments)[chosen]()
    if not source.length:
        raise DataError(f"{files.files[0].name} has no record")
    return source


def _format(files: Files, url: str) -> str:
    found = set()
    for file in files.files:
        name = file.name.lower()
        if name.endswith(_PACKED):
            raise UsageError(
                f"{file.name} is compressed, and such a file cannot be read by position: decompress it, or write "
                "Parquet, which compresses each row group"
            )
        found |= {known for known, suffixes in FORMATS.items() if name.endswith(suffixes)} or {""}
    if len(found) > 1 or "" in found:
        kinds = " and ".join(sorted(found - {""})) or "none that is known"
        raise UsageError(f"{url} has files of the format {kinds}: say format= (one of {', '.join(FORMATS)})")
    return found.pop()


def _check(chosen: str, arguments: Mapping[str, object]) -> None:
    if chosen not in FORMATS:
        raise UsageError(f"format must be one of {', '.join(FORMATS)}, not {chosen!r}")
    for name, takers in _TAKES.items():
        if arguments[name] is not None and chosen not in takers:
            raise UsageError(f"{name}= does not fit the format {chosen}: it is for {', '.join(takers)}")
    if arguments["stride"] is not None and arguments["window"] is None:
        raise UsageError("stride= needs window=")


def _makers(
    files: Files, root: Path, memory_bytes: int, progress: Progress, given: Mapping[str, Any]
) -> dict[str, Callable[[], FileSource]]:
    columns, window, size = given["columns"], given["window"], given["image_size"]

    def csv(delimiter: str) -> FileSource:
        return CsvSource(files, root, columns, delimiter=delimiter, dtypes=given["dtypes"], progress=progress)

    def windows() -> FileSource:
        return TokenWindows(files, window, given["stride"])

    return {
        "parquet": lambda: RowGroups(files, "parquet", columns, root, memory_bytes, progress),
        "arrow": lambda: RowGroups(files, "arrow", columns, root, memory_bytes, progress),
        "csv": lambda: csv(","),
        "tsv": lambda: csv("\t"),
        "jsonl": lambda: JsonLinesSource(files, root, columns, progress),
        "tar": lambda: TarShards(files, root, columns, image_size=size, progress=progress),
        "npy": lambda: NpyRows(files) if window is None else windows(),
        "text": lambda: TextLines(files, root, progress) if window is None else windows(),
        "images": lambda: ImageFolder(files, image_size=size),
    }
