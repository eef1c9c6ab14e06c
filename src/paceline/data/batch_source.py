"""The protocol of a batch source, which makes the batch of a slot, and `LocalBatches`, which this process uses."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from paceline.core.sampling import Order
from paceline.data.data_spec import DataSpec
from paceline.data.loader import Batch as Batch
from paceline.data.loader import BatchMaker
from paceline.types import Segment


class SlotKey(NamedTuple):
    """Identifies a slot. Its batch follows from these three values and the job's seed."""

    segment: Segment
    step: int
    slot: int


class BatchSource(Protocol):
    """Makes the batches of one loop over `job.batches`. All calls come from the script's thread."""

    def prefetch(self, key: SlotKey) -> None:
        """Prepare the batch of the slot that will probably be asked for next.

        May block, and may draw random numbers. The batch of an earlier `prefetch` without a `get` is dropped.
        """
        ...

    def get(self, key: SlotKey) -> Batch:
        """Return the batch of a slot, which then belongs to the caller. Blocks until the batch is made.

        If `key` is the slot that was prefetched last, no random number is drawn. An exception of the data set is
        raised in the script.
        """
        ...

    def close(self) -> None:
        """End all processes and threads of this source. Idempotent."""
        ...


class LocalBatches:
    """Makes batches by its `maker`, in this process or in loader processes; at most one before it is asked for."""

    def __init__(self, spec: DataSpec, seed: int) -> None:
        self.maker = BatchMaker(spec, seed)
        self._order = Order(seed, spec.order.upto)
        self._ahead: tuple[SlotKey, Batch] | None = None

    def prefetch(self, key: SlotKey) -> None:
        """Make the batch of `key` now; see `BatchSource`."""
        self._ahead = None  # frees its memory before the next batch is made
        self._ahead = key, self._make(key)

    def get(self, key: SlotKey) -> Batch:
        """Return the batch of `key`; see `BatchSource`."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == key else self._make(key)

    def _make(self, key: SlotKey) -> Batch:
        positions = self._order.samples(*key)
        return self.maker.make_batch(positions, key.step, key.slot)

    def close(self) -> None:
        """End the loader processes."""
        self._ahead = None
        self.maker.close()
