"""Makes the batch of a slot from the positions of its samples, in this process or in loader processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from paceline.core.sampling import Indices, slot_seed
from paceline.data.data_spec import DataSpec
from paceline.data.seeding import seed_sample
from paceline.data.source import DatasetSource, Source
from paceline.errors import BadRecordError
from paceline.orphans import die_with_parent
from paceline.types import BadRecord

_SEEDS = 0x7FFFFFFFFFFFFFFF  # the largest seed
_PER_PROCESS = 2  # requests that a loader process has at once


class _WholeSlot(NamedTuple):
    """Asks one loader process for a whole batch. Its samples have the seeds from `base` on."""

    base: int
    positions: tuple[int, ...]


_Request = list[tuple[int, int]] | _WholeSlot
"""What one loader process makes: samples, each given by (seed, position), or a batch."""


class Batch(NamedTuple):
    """A collated batch, the number of its samples, and the bad records that were left out of it."""

    content: Any
    num_samples: int
    bad: tuple[BadRecord, ...] = ()


def bad_record(error: BadRecordError, position: int) -> BadRecord:
    """What the log says of a bad record: the run of positions that the error names, else the one that was read."""
    first, count = (error.first, error.count) if error.first >= 0 else (position, 1)
    return BadRecord(first, count, (error.problem or str(error))[:400])


class _Samples(Dataset[Any]):
    """Reads samples one by one. Each has a seed of its own, so a batch is the same whichever process reads it."""

    def __init__(self, spec: DataSpec) -> None:
        self._source: Source = spec.source
        self._collate = spec.collate
        self._leave_out = spec.max_bad_records >= 0
        self._at_once = not getattr(spec.source, "draws_random_numbers", True)

    def __getitems__(self, request: _Request) -> Any:
        if isinstance(request, _WholeSlot):
            return (self.batch(request, self.read(_seeded(request))),)
        return self.read(request)

    def read(self, requests: list[tuple[int, int]]) -> list[Any]:
        """The samples given by (seed, position). If bad ones may be left out, a `BadRecord` is in the place of each."""
        if self._at_once:
            with suppress(BadRecordError):  # one by one, then, to find which
                return list(self._source.read([position for _, position in requests]))
        samples: list[Any] = []
        for seed, position in requests:
            seed_sample(seed)
            try:
                samples += self._source.read((position,))
            except BadRecordError as error:
                if not self._leave_out:
                    raise
                samples.append(bad_record(error, position))
        return samples

    def batch(self, slot: _WholeSlot, found: list[Any]) -> Batch:
        """The batch of a slot, of what `read` has found.

        `collate_fn` may draw random numbers, so it has a seed of its own: without one they would depend on what this
        process did before, unless it has just read the samples itself.
        """
        bad = tuple(sample for sample in found if type(sample) is BadRecord)
        samples = [sample for sample in found if type(sample) is not BadRecord] if bad else found
        if not samples:
            return Batch(None, 0, bad)
        seed_sample((slot.base + len(slot.positions)) & _SEEDS)
        return Batch(self._collate(samples), len(samples), bad)


def _seeded(slot: _WholeSlot) -> list[tuple[int, int]]:
    return [((slot.base + k) & _SEEDS, position) for k, position in enumerate(slot.positions)]


class _Feed:
    """Gives the DataLoader its next requests; an empty one if there is nothing to read, so that it never blocks."""

    def __init__(self) -> None:
        self._pending: deque[_Request] = deque()
        self._given: deque[bool] = deque()

    def add(self, requests: list[_Request]) -> None:
        """Add requests, for one loader process each."""
        self._pending.extend(requests)

    @property
    def can_give(self) -> bool:
        """Whether a request waits, and the next answer of the DataLoader is that to an empty one: it comes at once."""
        return bool(self._pending) and not (self._given and self._given[0])

    def answered(self) -> None:
        """Note that the DataLoader has given its next answer."""
        self._given.popleft()

    def __iter__(self) -> Iterator[Any]:
        while True:
            request: _Request = self._pending.popleft() if self._pending else []
            self._given.append(bool(request))
            yield request


def _as_is(samples: Any) -> Any:
    return samples


@dataclass(frozen=True, slots=True)
class _Begin:
    """Begins a loader process. `init` is the function of the user; it finds the user's data set where torch has it."""

    data: Any
    init: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        die_with_parent()
        object.__setattr__(get_worker_info(), "dataset", self.data)
        if self.init is not None:
            self.init(number)


class BatchMaker:
    """Makes batches. A batch follows from its positions, its slot and the job's seed alone.

    The number of loader processes changes only the speed if samples follow from their seed. `close` ends them.
    """

    def __init__(self, spec: DataSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._data = spec.source.data if isinstance(spec.source, DatasetSource) else spec.source
        self._samples = _Samples(spec)
        self._feed = _Feed()
        self._iterator: Iterator[Any] | None = None
        self._finished: deque[Any] = deque()

    @property
    def capacity(self) -> int:
        """How many batches the loader processes can have at once; 0 if batches are made in this process."""
        return 0 if self.spec.tensors is not None else _PER_PROCESS * self.spec.loader_workers

    def make(self, positions: Indices, step: int, slot: int) -> Any:
        """Make the collated batch of a slot."""
        return self.make_batch(positions, step, slot).content

    def make_batch(self, positions: Indices, step: int, slot: int) -> Batch:
        """Make the batch of a slot, without the bad records that may be left out. The content is None if all are.

        Loader processes share its samples.
        """
        tensors = self.spec.tensors
        if tensors is not None:
            where = torch.from_numpy(positions)
            # index_select gives the same numbers in the same layout as indexing, in half the time.
            return Batch([t.index_select(0, where) if t.is_contiguous() else t[where] for t in tensors], len(positions))
        read_batch = self.spec.read_batch
        if read_batch is not None:
            with suppress(BadRecordError):  # one by one, then, to find which
                return Batch(read_batch(positions), len(positions))
        whole = self._whole(positions, step, slot)
        return self._samples.batch(whole, self.read(_seeded(whole)))

    def begin(self, positions: Indices, step: int, slot: int) -> None:
        """Begin the batch of a slot in one loader process, for `finish`. Does not wait if there is `capacity`."""
        self._feed.add([self._whole(positions, step, slot)])
        self._start()
        while self._feed.can_give:
            self._next()

    def finish(self) -> Batch:
        """The batch of the slot that was begun first and is not finished. Draws no random numbers in this process."""
        if not self._finished:
            self._finished.append(self._next_filled())
        found: Batch = self._finished.popleft()[0]
        return found

    def read(self, requests: list[tuple[int, int]]) -> list[Any]:
        """Read samples, in the order of `requests`: each is a seed and a position."""
        return self._fetch(requests) if self.spec.loader_workers else self._samples.read(requests)

    def close(self) -> None:
        """End the loader processes. The next batch starts others."""
        iterator, self._iterator = self._iterator, None
        self._feed = _Feed()
        self._finished.clear()
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    # ------------------------------------------------------------ inside

    def _whole(self, positions: Indices, step: int, slot: int) -> _WholeSlot:
        return _WholeSlot(slot_seed(self.seed, step, slot, "data"), tuple(map(int, positions)))

    def _fetch(self, requests: list[tuple[int, int]]) -> list[Any]:
        """Read the samples of one slot in all loader processes, and return them in the order of `requests`."""
        size = -(-len(requests) // self.spec.loader_workers)
        chunks: list[_Request] = [requests[k : k + size] for k in range(0, len(requests), size)]
        self._feed.add(chunks)
        self._start()
        samples: list[Any] = []
        arrived = 0
        while arrived < len(chunks):
            part = self._next_filled()
            if isinstance(part, tuple):
                self._finished.append(part)  # a whole slot that was begun before
            else:
                samples += part
                arrived += 1
        return samples

    def _start(self) -> None:
        if self._iterator is None:
            loader = DataLoader(
                self._samples,
                batch_sampler=self._feed,
                num_workers=self.spec.loader_workers,
                prefetch_factor=_PER_PROCESS,
                collate_fn=_as_is,
                worker_init_fn=_Begin(self._data, self.spec.worker_init_fn),
                timeout=self.spec.timeout_s,
            )
            self._iterator = iter(loader)

    def _next_filled(self) -> Any:
        """The next answer that is not to an empty request."""
        while not (part := self._next()):
            pass
        return part

    def _next(self) -> Any:
        assert self._iterator is not None
        part = next(self._iterator)
        self._feed.answered()
        return part
