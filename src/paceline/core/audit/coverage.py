"""Check that the committed steps applied every sample of every epoch exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.core.sampling import Indices, epochs_begun, sample_ranges, samples_at
from paceline.core.schedule import Schedule
from paceline.types import PhaseEntry, PhaseSpec, Segment

_CHUNK = 1 << 18
_SHOWN = 5
_SPARE = 100  # at most this many epochs without any step are checked, because a damaged segment may name billions
_LARGEST = 1 << 28  # samples: the permutation of a larger data set is not checked, because the table would be too big


_NONE: Mapping[int, Segment] = {}
_Key = tuple[PhaseSpec, int, int]
"""The phase, the seed and the epoch of a shuffled order."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Committed steps as columns, with the numbers that their segments give. A step committed twice is in it twice."""

    step: Indices
    phase: Indices
    epoch: Indices
    offset: Indices
    samples: Indices
    slots: Indices
    window: Indices
    start: Indices

    def pick(self, chosen: npt.NDArray[np.bool_] | Indices | slice) -> Steps:
        """The chosen steps."""
        return Steps(*(getattr(self, name)[chosen] for name in self.__slots__))


def place_all(schedule: Schedule, steps: Indices) -> Steps:
    """Look up `steps` in the schedule, which must cover all of them.

    The column `start` of the result has, for each step, the step below which all are committed before it is leased:
    the first step of its phase, or of its segment if the mode has changed there.
    """
    begins: dict[int, int] = {}
    for segment in schedule.segments:
        begins.setdefault(segment.phase, segment.step)
    columns = [np.zeros(len(steps), dtype=np.int64) for _ in range(7)]
    order = np.argsort(steps, kind="stable")
    ends = [segment.step for segment in schedule.segments[1:]] + [schedule.end_step]
    stops = np.searchsorted(steps[order], ends).tolist()
    for segment, start, stop in zip(schedule.segments, [0, *stops], stops, strict=False):
        mine = order[start:stop]
        at = sample_ranges(segment, steps[mine])
        begin = max(begins[segment.phase], schedule.barrier(segment.step))
        values: list[Indices | int] = [segment.phase, *at, segment.window, begin]
        for column, value in zip(columns, values, strict=True):
            column[mine] = value
    return Steps(steps, *columns)


@dataclass(frozen=True, slots=True)
class Hole:
    """Samples of one epoch that were never applied or, with `twice`, more than once. `samples` has the first few."""

    phase: int
    epoch: int
    count: int
    samples: tuple[int, ...]
    twice: bool


@dataclass(frozen=True, slots=True)
class Covered:
    """The result of `cover`: the number of complete epochs, (epoch, samples so far) of incomplete ones, the holes.

    `left_out` is the number of samples of the complete epochs that `drop_last` left out.
    """

    epochs: int
    left_out: int
    begun: tuple[tuple[int, int], ...]
    holes: tuple[Hole, ...]


def cover(
    phases: Sequence[PhaseEntry],
    steps: Steps,
    bound: int,
    seed: int,
    lasts: Mapping[int, Segment] = _NONE,
    budget: int = 1 << 25,
) -> Covered:
    """Check every epoch. All steps below `bound` must be committed; later steps may be.

    `lasts` has the segment in which a phase ends, by its number, if that is not its first segment.

    The check looks at all positions of every epoch. For at most `budget` positions it also computes the samples, to
    check that the order of an epoch is a permutation.
    """
    order = np.lexsort((steps.offset, steps.epoch, steps.phase))
    steps = steps.pick(order)
    whole, left_out, begun, holes = 0, 0, [], list[Hole]()
    for entries in _runs(phases):
        entry = entries[0]
        for epoch, mine, closed in _epochs(entries, steps, bound, lasts):
            usable = _usable(entry)
            target = usable if closed else int((mine.offset + mine.samples)[mine.step < bound].max(initial=0))
            missing, twice = _compare(mine, target)
            n = entry.spec.data_len
            key = (entry.spec, seed, epoch) if entry.spec.shuffle and not entry.spec.weights else None
            for spans, is_twice in ((missing, False), (twice, True)):
                if spans:
                    count = sum(stop - start for start, stop in spans)
                    holes.append(Hole(entry.spec.number, epoch, count, _named(spans, key), is_twice))
            if key is not None and budget > 0 and target <= n <= _LARGEST and not missing and not twice:
                budget -= target
                doubled = _doubled(target, key)
                if doubled:
                    holes.append(Hole(entry.spec.number, epoch, len(doubled), doubled[:_SHOWN], True))
            if closed:
                whole += usable > 0
                left_out += (n - usable) * (usable > 0)
            elif target:
                begun.append((epoch, target))
    return Covered(whole, left_out, tuple(begun), tuple(holes))


def _usable(entry: PhaseEntry) -> int:
    spec = entry.spec
    return spec.data_len - spec.data_len % spec.batch_size if spec.drop_last else spec.data_len


def _runs(phases: Sequence[PhaseEntry]) -> list[list[PhaseEntry]]:
    """The phases in runs: a phase that begins in the middle of an epoch goes on with the data of the phase before."""
    runs: list[list[PhaseEntry]] = []
    for entry in phases:
        if runs and entry.spec.steps and entry.segment.offset:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _epochs(
    entries: Sequence[PhaseEntry], steps: Steps, bound: int, lasts: Mapping[int, Segment]
) -> Iterator[tuple[int, Steps, bool]]:
    """The epochs of a run of phases that the job has reached, each with its steps and whether it must be complete."""
    begin, end = entries[0], entries[-1]
    mine = steps.pick(slice(*np.searchsorted(steps.phase, (begin.spec.number, end.spec.number + 1))))
    mine = mine.pick(np.lexsort((mine.offset, mine.epoch)))
    first = begin.segment.epoch
    final = lasts.get(end.spec.number, end.segment)
    ended = bound >= end.end and end.end >= final.end_step
    reached = int(mine.epoch[mine.step < bound].max(initial=first - 1))
    last = epochs_begun(final) - 1 if ended else int(mine.epoch.max(initial=first - 1))
    for epoch in range(first, min(last, first + len(mine.step) + _SPARE) + 1):
        of_epoch = slice(*np.searchsorted(mine.epoch, (epoch, epoch + 1)))
        yield epoch, mine.pick(of_epoch), epoch < (final.end_epoch if ended else reached)


Spans = list[tuple[int, int]]


def _compare(steps: Steps, target: int) -> tuple[Spans, Spans]:
    """The positions below `target` that no step covers, and the positions that several steps cover."""
    starts, ends = steps.offset, steps.offset + steps.samples
    before = np.concatenate(([0], np.maximum.accumulate(ends)))
    missing = [
        (int(before[i]), min(int(starts[i]), target))
        for i in np.flatnonzero(starts > before[:-1])
        if before[i] < target
    ]
    if before[-1] < target:
        missing.append((int(before[-1]), target))
    doubled = np.flatnonzero(starts < before[:-1])
    return missing, [(int(starts[i]), min(int(ends[i]), int(before[i]))) for i in doubled]


def _order(positions: Indices, key: _Key | None) -> Indices:
    return positions if key is None else samples_at(positions, *key)


def _named(spans: Spans, key: _Key | None) -> tuple[int, ...]:
    """The samples at the first positions of `spans`."""
    first = [position for start, stop in spans[:_SHOWN] for position in range(start, min(stop, start + _SHOWN))]
    n = key[0].data_len if key is not None else None
    known = [p for p in first[:_SHOWN] if n is None or p < n]
    return tuple(_order(np.array(known, dtype=np.int64), key).tolist())


def _doubled(target: int, key: _Key) -> tuple[int, ...]:
    """Samples that occur twice among the first `target` positions."""
    seen = np.zeros(key[0].data_len, dtype=np.bool_)
    for start in range(0, target, _CHUNK):
        seen[_order(np.arange(start, min(start + _CHUNK, target), dtype=np.int64), key)] = True
    if int(seen.sum()) == target:
        return ()
    samples, counts = np.unique(_order(np.arange(target, dtype=np.int64), key), return_counts=True)
    return tuple(samples[counts > 1].tolist())
