"""Iterable data as shards, each with a declared number of samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from paceline.data.files.places import Files
from paceline.data.sources.base import WINDOW, FileSource, kind_of
from paceline.errors import DataError, UsageError


class IterableShards(FileSource):
    """Shard k has the samples that ``make(k)`` iterates over: ``counts[k]`` of them, the same at every call.

    A shard is read as a whole and kept until `keep` others were read after it. Samples must not be drawn at random:
    a transform that does belongs into `collate_fn`, which is seeded for each slot.
    """

    def __init__(self, make: Callable[[int], Iterable[Any]], counts: Sequence[int], keep: int = 2 * WINDOW) -> None:
        if not counts or min(counts) < 1:
            raise UsageError("counts= must have the number of samples of each shard, at least 1")
        name = f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', type(make).__qualname__)}"
        super().__init__(Files([]), kind_of("iterable", of=name, shards=len(counts)))
        self._make, self._keep = make, keep
        self._starts = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()

    @property
    def length(self) -> int:
        """The sum of the declared numbers."""
        return int(self._starts[-1])

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self._starts) - 1

    @property
    def block_size(self) -> int:
        """The samples of a typical shard."""
        return max(1, int(np.median(np.diff(self._starts)))) if self.num_shards > 1 else 0

    def where(self, position: int) -> str:
        """The shard and the sample in it."""
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        return f"sample {position - int(self._starts[shard])} of shard {shard}"

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """As `FileSource.read`."""
        found = []
        for position in positions:
            shard = int(np.searchsorted(self._starts, position, side="right")) - 1
            found.append(self._shard(shard)[int(position) - int(self._starts[shard])])
        return found

    def _shard(self, shard: int) -> list[Any]:
        found = self._kept.get(shard)
        if found is None:
            count = int(self._starts[shard + 1] - self._starts[shard])
            found = list(islice(self._make(shard), count + 1))
            if len(found) != count:
                has = f"{len(found)} samples" if len(found) < count else "more samples"
                raise DataError(f"shard {shard} has {has}, and counts= declares {count}: correct counts=")
            self._kept[shard] = found
            if len(self._kept) > self._keep:
                self._kept.popitem(last=False)
        self._kept.move_to_end(shard)
        return found
