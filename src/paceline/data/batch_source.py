"""The batch source seam: the batch of a slot, made when it is asked for or before."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from paceline.core.sampling import Order
from paceline.data.data_spec import DataSpec
from paceline.data.loader import BatchMaker
from paceline.types import Segment


class SlotKey(NamedTuple):
    """Names a slot: its batch is a function of these three and of the job's seed."""

    segment: Segment
    step: int
    slot: int


class Batch(NamedTuple):
    """A collated batch, and how many samples it has."""

    content: Any
    num_samples: int


class BatchSource(Protocol):
    """What `job.batches` iterates over. All calls come from the script's thread."""

    def prefetch(self, key: SlotKey) -> None:
        """Prepare the batch of the slot that will probably be asked for next.

        May block, and may draw random numbers. A batch that was prefetched before and not asked for is dropped.
        """
        ...

    def get(self, key: SlotKey) -> Batch:
        """The batch of a slot; it belongs to the caller. Blocks until it is made.

        If `key` is the slot that was prefetched last, no random number is drawn. Exceptions of the data set pass
        through to the script.
        """
        ...

    def close(self) -> None:
        """End what was started for this source. Idempotent."""
        ...


class LocalBatches:
    """Makes batches in this process (or in its loader processes), at most one ahead."""

    def __init__(self, spec: DataSpec, seed: int) -> None:
        self._maker = BatchMaker(spec, seed)
        self._order = Order(seed)
        self._ahead: tuple[SlotKey, Batch] | None = None

    def prefetch(self, key: SlotKey) -> None:
        """Make the batch of `key` now; see `BatchSource`."""
        self._ahead = None  # its memory is free while the next batch is made
        self._ahead = key, self._make(key)

    def get(self, key: SlotKey) -> Batch:
        """The batch of `key`; see `BatchSource`."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == key else self._make(key)

    def _make(self, key: SlotKey) -> Batch:
        positions = self._order.samples(*key)
        return Batch(self._maker.make(positions, key.step, key.slot), len(positions))

    def close(self) -> None:
        """End the loader processes."""
        self._ahead = None
        self._maker.close()
