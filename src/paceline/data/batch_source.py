"""The protocol of a batch source, which makes the batch of a slot, and `LocalBatches`, which this process uses."""

from __future__ import annotations

import operator
from collections import deque
from typing import NamedTuple, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from paceline.core.sampler.guess import NextSlots
from paceline.core.sampling import Order
from paceline.data.data_spec import DataSpec
from paceline.data.loader import Batch as Batch
from paceline.data.loader import BatchMaker
from paceline.types import Segment, SlotId


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
    """Makes batches by its `maker`, in this process or in loader processes.

    Without loader processes at most one batch is made before it is asked for. Loader processes prepare the next slots
    that this worker will probably lease while the script computes.
    """

    def __init__(self, spec: DataSpec, seed: int) -> None:
        self.maker = BatchMaker(spec, seed)
        self._order = Order(seed, spec.order.upto)
        self._guess = NextSlots()
        self._made: dict[SlotKey, Batch] = {}
        self._begun: deque[SlotKey] = deque()

    def prefetch(self, key: SlotKey) -> None:
        """Make the batch of `key` now, unless a loader process has begun it; see `BatchSource`."""
        self._drop(key)  # frees memory before the next batch is made
        if key not in self._made and key not in self._begun:
            self._made[key] = self._make(key)

    def get(self, key: SlotKey) -> Batch:
        """Return the batch of `key`; see `BatchSource`."""
        self.prefetch(key)
        while key not in self._made:
            first = self._begun.popleft()
            batch = self.maker.finish()
            if _is_ahead(first, key):
                self._made[first] = batch
        batch = self._made.pop(key)
        self._begin_ahead(key)
        return self.pinned(batch)

    def num_samples(self, key: SlotKey) -> int:
        """The number of samples of a slot."""
        return len(self._order.samples(*key))

    def pinned(self, batch: Batch) -> Batch:
        """The batch in pinned memory, if the data ask for it and there is a GPU that reads it."""
        if not self.maker.spec.pin_memory or not torch.cuda.is_available():
            return batch
        content = pin_memory(batch.content)  # type: ignore[no-untyped-call]
        return batch._replace(content=content)

    def _make(self, key: SlotKey) -> Batch:
        positions = self._order.samples(*key)
        return self.maker.make_batch(positions, key.step, key.slot)

    def _drop(self, key: SlotKey) -> None:
        """Drop the batches that are of no use once `key` is leased."""
        kept = _is_ahead if self.maker.capacity else operator.eq
        self._made = {known: batch for known, batch in self._made.items() if kept(known, key)}

    def _begin_ahead(self, key: SlotKey) -> None:
        """Let the loader processes begin the slots that this worker will probably lease after `key`."""
        capacity = self.maker.capacity
        if not capacity:
            return
        while self._begun and not _is_ahead(self._begun[0], key):  # a wrong guess
            self._begun.popleft()
            self.maker.finish()
        self._guess.leased(key.segment, SlotId(key.step, key.slot))
        for slot in self._guess.ahead(capacity):
            ahead = SlotKey(key.segment, *slot)
            if len(self._begun) + len(self._made) >= capacity:
                return
            if ahead not in self._begun and ahead not in self._made:
                self.maker.begin(self._order.samples(*ahead), ahead.step, ahead.slot)
                self._begun.append(ahead)

    def close(self) -> None:
        """End the loader processes."""
        self._made.clear()
        self._begun.clear()
        self.maker.close()


def _is_ahead(known: SlotKey, key: SlotKey) -> bool:
    """Whether the batch of `known` may be asked for once `key` is leased: the same plan, and no earlier slot."""
    return known.segment == key.segment and (known.step, known.slot) >= (key.step, key.slot)
