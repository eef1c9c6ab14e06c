"""Prepares the next turn while the servers work: makes its batch and seeds the random generators."""

from __future__ import annotations

import time

from paceline.data.batch_source import Batch, BatchSource, SlotKey
from paceline.data.seeding import seed_slot
from paceline.messages import Grant
from paceline.telemetry import tracing


class Prefetch:
    """The prepared batch of the next turn. If its lease becomes void, the batch is dropped.

    `waited` is how many seconds the script's thread spent on the batch that was taken last.
    """

    def __init__(self, batches: BatchSource, seed: int) -> None:
        self.waited = 0.0
        self._batches = batches
        self._seed = seed
        self._prepared: SlotKey | None = None
        self._seeded: tuple[int, int] | None = None
        self._spent = 0.0

    def prepare(self, grant: Grant) -> None:
        """Make the batch of `grant` and seed the generators for its turn, if that is not done."""
        key = _key(grant)
        if key != self._prepared:
            self._seeded = None  # a batch seeds the generators for each sample
            began = time.monotonic()
            with tracing.span("make", step=grant.step, slot=grant.slot):
                self._batches.prefetch(key)
            self._spent = time.monotonic() - began
            self._prepared = key
        self._seed_slot(grant)

    def take(self, grant: Grant) -> Batch:
        """Return the batch of `grant`, which then belongs to the caller."""
        key = _key(grant)
        began = time.monotonic()
        if key != self._prepared:
            self._seeded, self._spent = None, 0.0
            with tracing.span("make", step=grant.step, slot=grant.slot):
                batch = self._batches.get(key)
        else:
            batch = self._batches.get(key)
        self._prepared = None
        self.waited = self._spent + time.monotonic() - began
        return batch

    def seed_turn(self, grant: Grant) -> None:
        """Seed the generators for the turn of `grant`, which begins now, unless `prepare` has done it."""
        self._seed_slot(grant)
        self._seeded = None

    def _seed_slot(self, grant: Grant) -> None:
        if self._seeded != (grant.step, grant.slot):
            seed_slot(self._seed, grant.step, grant.slot)
            self._seeded = grant.step, grant.slot

    def close(self) -> None:
        """Close the batch source."""
        self._prepared = None
        self._batches.close()


def _key(grant: Grant) -> SlotKey:
    assert grant.segment is not None
    return SlotKey(grant.segment, grant.step, grant.slot)
