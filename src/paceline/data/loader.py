"""Makes the batch of a slot, in this process or in loader processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from paceline.core.sampling import Indices, slot_seed
from paceline.data.seeding import seed_sample
from paceline.data.source import Source
from paceline.orphans import die_with_parent

Request = tuple[int, list[int]]


class _Samples(Dataset[Any]):
    """Fetches single samples, each seeded by its place in the slot, so that no batch depends on who fetched it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitems__(self, requests: list[tuple[int, int]]) -> list[Any]:
        samples = []
        for seed, index in requests:
            seed_sample(seed)
            samples.append(self.data[index])
        return samples


class _Feed:
    """Index lists for the DataLoader's workers; an empty one when there is nothing to fetch, so it never blocks."""

    def __init__(self) -> None:
        self.pending: deque[list[tuple[int, int]]] = deque()

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        while True:
            yield self.pending.popleft() if self.pending else []


def _as_is(samples: list[Any]) -> list[Any]:
    return samples


def _die_with_parent(_: int) -> None:
    die_with_parent()


class BatchMaker:
    """The batch of a slot as a function of its sample numbers and seed.

    The number of loader processes changes nothing but speed. Close it to end them.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self.source = source
        self.seed = seed
        self._samples = _Samples(source.data)
        self._feed = _Feed()
        self._iterator: Iterator[list[Any]] | None = None

    def make(self, indices: Indices, step: int, slot: int) -> Any:
        """The collated batch."""
        tensors = self.source.tensors
        if tensors is not None:
            where = torch.from_numpy(indices)
            # The same numbers in the same layout; index_select takes half the time.
            return [t.index_select(0, where) if t.is_contiguous() else t[where] for t in tensors]
        base = slot_seed(self.seed, step, slot, "data")
        requests = [((base + k) & 0x7FFFFFFFFFFFFFFF, int(i)) for k, i in enumerate(indices)]
        if self.source.loader_workers:
            return self.source.collate(self._fetch(requests))
        return self.source.collate(self._samples.__getitems__(requests))

    def _fetch(self, requests: list[tuple[int, int]]) -> list[Any]:
        """Split one slot over the loader processes and gather it in order."""
        workers = self.source.loader_workers
        if self._iterator is None:
            loader = DataLoader(
                self._samples,
                batch_sampler=self._feed,
                num_workers=workers,
                prefetch_factor=1,
                collate_fn=_as_is,
                worker_init_fn=_die_with_parent,
            )
            self._iterator = iter(loader)
        size = -(-len(requests) // workers)
        chunks = [requests[k : k + size] for k in range(0, len(requests), size)]
        self._feed.pending.extend(chunks)
        samples: list[Any] = []
        arrived = 0
        while arrived < len(chunks):
            part = next(self._iterator)
            if part:
                samples += part
                arrived += 1
        return samples

    def close(self) -> None:
        """End the loader processes."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]
