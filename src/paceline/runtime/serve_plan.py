"""What `paceline serve` shall serve, where, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.predict.batching import BatchLimits
from paceline.core.predict.reader import ReaderLimits
from paceline.errors import UsageError
from paceline.predict.server import ListenSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What to serve, where, and within which limits.

    `targets` are paths of model files, checkpoints or runs, each with the name that it gets ("": by its script). With
    `follow`, runs are followed. `pins` are the versions of the runs' checkpoints that are served; the last one answers
    requests that name none. With `trust`, pt2 files are unpickled. `hosts` are further names of this server. With
    `workers` above 1, a router divides the requests among so many processes.
    """

    targets: tuple[tuple[str, Path], ...]
    listen: ListenSpec = field(default_factory=ListenSpec)
    batch: BatchLimits = field(default_factory=BatchLimits)
    follow: bool = False
    pins: tuple[str, ...] = ()
    token: str | None = None
    hosts: tuple[str, ...] = ()
    threads: int = 1
    trust: bool = False
    workers: int = 1
    log_level: str = "warning"
    log_format: str = "text"
    max_body_nbytes: int = 64 << 20
    refresh: ReaderLimits = field(default_factory=ReaderLimits)


def encode_plan(plan: ServePlan) -> str:
    """The plan as a word of a command line. It has no token: a predictor is asked by its router alone."""
    return msgspec.json.encode(replace(plan, token=None, hosts=()), enc_hook=str).decode()


def decode_plan(word: str) -> ServePlan:
    """The plan in a word that `encode_plan` made."""

    def path(kind: type, value: Any) -> Any:
        return kind(value)

    return msgspec.json.decode(word, type=ServePlan, dec_hook=path)


def read_secret(file: Path) -> str:
    """The token that clients must prove: the content of a file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
