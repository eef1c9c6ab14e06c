"""Which samples of the data an epoch has, and in which order: `shuffle`, `fraction`, `weights` and `on_bad_record`."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from paceline.core.shuffles import Weights
from paceline.data.source import Source
from paceline.data.sources.parts import Part, part_of
from paceline.errors import UsageError

SHUFFLES = (True, False, "full", "blocks")


@dataclass(frozen=True, slots=True)
class Choice:
    """The arguments of `job.batches` that choose samples. `seed` chooses the samples of a fraction."""

    fraction: float = 1.0
    weights: Any = None
    on_bad_record: str = "raise"
    max_bad_records: int = 100
    seed: int = 0


ALL = Choice()


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of an epoch. Without `block_size` a shuffle is a full one; with `upto` samples are drawn by weight.

    `weights` is a digest of the weights.
    """

    shuffle: bool
    block_size: int = 0
    block_window: int = 0
    upto: Weights | None = None
    weights: str = ""


def order_of(source: Source, shuffle: bool | str, weights: Any) -> SampleOrder:
    """The order that `shuffle` and `weights` ask for.

    True is a full shuffle where reading any sample is cheap, and a shuffle by blocks where it is dear.

    Raises:
        UsageError: `shuffle` is none of `SHUFFLES`, or the weights do not fit the data.
    """
    if not any(shuffle is known or shuffle == known for known in SHUFFLES):
        raise UsageError(f'shuffle must be True, False, "full" or "blocks", not {shuffle!r}')
    if weights is not None:
        if not shuffle:
            raise UsageError("weights= draws samples at random, and shuffle=False asks for their order: give one")
        return _by_weight(source, weights)
    size = int(getattr(source, "block_size", 0))
    if shuffle == "blocks" and size < 1:
        raise UsageError('shuffle="blocks" needs data in shards, which these are not: use shuffle=True')
    if shuffle in (False, "full") or size < 1 or size >= source.length:
        return SampleOrder(bool(shuffle))
    return SampleOrder(True, size, max(1, int(getattr(source, "block_window", 1))))


def _by_weight(source: Source, weights: Any) -> SampleOrder:
    values = np.array(weights, dtype=np.float64).reshape(-1)
    if len(values) != source.length:
        raise UsageError(f"weights= has {len(values)} numbers, and the data have {source.length} samples")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise UsageError("weights= must be finite, not negative, and not all 0")
    digest = blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()
    return SampleOrder(True, upto=np.cumsum(values), weights=digest)


def part_of_data(source: Source, fraction: float, seed: int, weights: Any) -> Part:
    """The part of the data that ``fraction=`` asks for: the same in each epoch.

    Raises:
        UsageError: it is not above 0 and below 1, or weights are given, too.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"fraction must be above 0 and at most 1, not {fraction}")
    if weights is not None:
        raise UsageError("fraction= and weights= both choose samples: give weights of 0 to those that are left out")
    return part_of(source, 0.0, fraction, seed, fraction)


def most_bad_records(on_bad_record: str, max_bad_records: int) -> int:
    """How many bad records may be left out; -1 if the first one ends the job.

    Raises:
        UsageError: an argument has a value that it cannot have.
    """
    if on_bad_record not in ("raise", "skip"):
        raise UsageError(f'on_bad_record must be "raise" or "skip", not {on_bad_record!r}')
    if max_bad_records < 1:
        raise UsageError(f"max_bad_records must be at least 1, not {max_bad_records}")
    return max_bad_records if on_bad_record == "skip" else -1
