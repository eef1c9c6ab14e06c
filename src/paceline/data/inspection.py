"""What a source is, in numbers: `paceline data inspect`, and `paceline.data.inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.opening import open as open_source
from paceline.data.source import Source, as_source
from paceline.errors import BadRecordError

_SHOWN_FILES = 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a source is.

    `fingerprint` follows from its kind, its arguments and its files. `samples` are texts. `block_size` is 0 if a
    shuffle is a full one.
    """

    kind: str
    samples: int
    shards: int
    nbytes: int
    columns: dict[str, str]
    fingerprint: str
    files: list[tuple[str, str]]
    num_files: int
    block_size: int
    block_window: int
    shown: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The fields as values for JSON."""
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """The fields as lines for people."""
        shuffle = "full shuffle"
        if self.block_size:
            shuffle = f"shuffle by blocks of {self.block_size:,} samples, {self.block_window} blocks at a time"
        size = f"{self.nbytes / 1e6:,.1f} MB in {self.num_files:,} file{'s' * (self.num_files != 1)}"
        lines = [
            f"kind         {self.kind}",
            f"samples      {self.samples:,} in {self.shards:,} shard{'s' * (self.shards != 1)}; {shuffle}",
            f"size         {size}",
            f"fingerprint  {self.fingerprint}",
        ]
        lines += [f"column       {name}: {kind}" for name, kind in self.columns.items()]
        lines += [f"file         {name} ({digest})" for name, digest in self.files]
        if (more := self.num_files - len(self.files)) > 0:
            lines.append(f"file         and {more:,} more")
        return lines + [f"sample {text}" for text in self.shown]


def inspect(data: Any, *, samples: int = 3, **arguments: Any) -> Inspected:
    """Describe a source, or what `paceline.data.open` gives for an address and `arguments`.

    Raises:
        DataError: as `paceline.data.open`.
    """
    source: Any = open_source(data, **arguments) if isinstance(data, str | Path) else as_source(data)
    files = list(getattr(source, "file_digests", ()))
    inner = getattr(source, "files", None)
    length = source.length
    places = sorted({k * (length - 1) // max(1, samples - 1) for k in range(min(samples, length))})
    return Inspected(
        kind=str(getattr(source, "kind", source.fingerprint)),
        samples=length,
        shards=int(getattr(source, "num_shards", 1)),
        nbytes=sum(file.size for file in inner.files) if inner is not None else 0,
        columns=dict(getattr(source, "columns", {})),
        fingerprint=fingerprint_of(source),
        files=files[:_SHOWN_FILES],
        num_files=len(files),
        block_size=int(getattr(source, "block_size", 0)),
        block_window=int(getattr(source, "block_window", 0)),
        shown=[f"{place}: {_shown_sample(source, place)}" for place in places],
    )


def fingerprint_of(source: Source) -> str:
    """A short text that follows from the kind, the arguments and the files of a source."""
    text = f"{source.fingerprint} {tuple(getattr(source, 'file_digests', ()))!r}"
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _shown_sample(source: Source, place: int) -> str:
    try:
        return _shown(source.read([place])[0])
    except BadRecordError as error:
        return f"bad: {error}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"{value.dtype} {value.shape}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 6:
        return f"{type(value).__name__} of {len(value)}"
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
