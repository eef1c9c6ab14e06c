"""The samples and the random seed of a slot: a pure function of (seed, segments, step, slot).

`paceline.core.shuffles` has the order of samples in an epoch. Any process can compute any slot again.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from paceline.core.shuffles import Indices as Indices
from paceline.core.shuffles import Weights, draw, permute_blocks
from paceline.core.shuffles import permute as permute
from paceline.types import PhaseSpec, Segment

_CHUNK = 4096  # this many positions (a chunk) are permuted in one call, so that many slots share numpy's overhead


def slot_seed(seed: int, step: int, slot: int, purpose: str = "slot") -> int:
    """The 63-bit random seed of a slot. `purpose` separates the random numbers of data and model."""
    raw = blake2b(f"paceline {purpose} {seed} {step} {slot}".encode(), digest_size=8).digest()
    return int.from_bytes(raw, "little") >> 1


class SampleRange(NamedTuple):
    """The samples of a step: its epoch, first position, number of samples and number of slots."""

    epoch: int
    offset: int
    samples: int
    slots: int


class _Epochs(NamedTuple):
    first_end: int
    first_steps: int
    end: int
    steps: int


def _epochs(segment: Segment) -> _Epochs:
    """Where the first epoch of a segment ends and how many steps it has; the same for each later epoch.

    The segment may begin in the middle of its first epoch.
    """
    per_step = segment.slots * segment.batch_size

    def usable(n: int) -> int:
        return n - n % segment.batch_size if segment.drop_last else n

    first_end = segment.offset + usable(segment.data_len - segment.offset)
    end = usable(segment.data_len)
    return _Epochs(first_end, -(-(first_end - segment.offset) // per_step), end, -(-end // per_step))


def sample_range(segment: Segment, step: int) -> SampleRange:
    """The samples of a step of this segment.

    A step does not cross the end of an epoch: its last slots may be short or missing.
    """
    per_step = segment.slots * segment.batch_size
    first_end, first_steps, end, steps = _epochs(segment)
    k = step - segment.step
    if k < first_steps:
        epoch, offset, stop = segment.epoch, segment.offset + k * per_step, first_end
    else:
        k -= first_steps
        epoch, offset, stop = segment.epoch + 1 + k // steps, (k % steps) * per_step, end
    count = min(per_step, stop - offset)
    return SampleRange(epoch, offset, count, -(-count // segment.batch_size))


def full_steps(segment: Segment, step: int) -> tuple[int, int]:
    """The steps around `step`, in its epoch, that have all their samples: from the first to before the second.

    Both are `step` if `step` itself is short.
    """
    per_step = segment.slots * segment.batch_size
    first_end, first_steps, end, steps = _epochs(segment)
    k = step - segment.step
    if k < first_steps:
        begin, full = segment.step, (first_end - segment.offset) // per_step
    else:
        begin, full = step - (k - first_steps) % steps, end // per_step
    return (begin, begin + full) if step < begin + full else (step, step)


def epochs_before(segment: Segment, step: int) -> int:
    """How many epochs of the job end before `step`, which lies in this segment, or at the end of its phase."""
    return segment.end_epoch if step >= segment.end_step else sample_range(segment, step).epoch


class SampleRanges(NamedTuple):
    """The `SampleRange` of many steps: each field is an array with one entry per step."""

    epoch: Indices
    offset: Indices
    samples: Indices
    slots: Indices


def sample_ranges(segment: Segment, steps: Indices) -> SampleRanges:
    """Compute `sample_range` for many steps of this segment at once."""
    per_step = segment.slots * segment.batch_size
    first_end, first_steps, end, later_steps = _epochs(segment)
    k = steps - segment.step
    first = k < first_steps
    turn, at = np.divmod(k - first_steps, max(1, later_steps))
    offset = np.where(first, segment.offset + k * per_step, at * per_step)
    samples = np.minimum(per_step, np.where(first, first_end, end) - offset)
    return SampleRanges(
        np.where(first, segment.epoch, segment.epoch + 1 + turn), offset, samples, -(-samples // segment.batch_size)
    )


def num_steps(segment: Segment) -> int:
    """How many steps there are from the start of `segment` to the end of the last epoch of its phase."""
    _, first_steps, _, steps = _epochs(segment)
    return first_steps + (segment.end_epoch - segment.epoch - 1) * steps


def data_after(segment: Segment) -> tuple[int, int]:
    """The epoch and the position in it at which the data go on after the end of the segment's phase."""
    if segment.end_step == segment.step + num_steps(segment):
        return segment.end_epoch, 0
    at = sample_range(segment, segment.end_step)
    return at.epoch, at.offset


def epochs_begun(segment: Segment) -> int:
    """How many epochs of the job have begun at the end of the segment's phase."""
    epoch, offset = data_after(segment)
    return epoch + (offset > 0)


def data_before(spec: PhaseSpec, last: Segment | None) -> tuple[int, int]:
    """The epoch and the position in it at which phase `spec` begins, after a phase that ends with the segment `last`.

    A phase of `spec.steps` steps goes on in the epoch that the phase before has left, if both cut the same data in the
    same way. Any other phase begins that epoch from its first sample.
    """
    if last is None:
        return 0, 0
    epoch, offset = data_after(last)
    if spec.steps and cut_of(spec) == cut_of(last):
        return epoch, offset
    return epoch, 0


def phase_end(spec: PhaseSpec, segment: Segment) -> Segment:
    """The first segment of phase `spec`, with the end that the arguments of the phase give it."""
    if not spec.steps:
        whole = replace(segment, end_epoch=segment.epoch + spec.epochs)
        return replace(whole, end_step=segment.step + num_steps(whole))
    if not _epochs(segment).steps:  # the data set has no sample, or drop_last leaves none
        return replace(segment, end_step=segment.step, end_epoch=segment.epoch)
    end = segment.step + spec.steps
    return replace(segment, end_step=end, end_epoch=sample_range(segment, end).epoch)


def phase_rest(spec: PhaseSpec, start: int, segment: Segment) -> Segment:
    """A later segment of phase `spec`, which began at step `start`, with the end that it gives the phase.

    Its epochs are those of the phase, whatever the number of slots.
    """
    if not spec.steps:
        return replace(segment, end_step=segment.step + num_steps(segment))
    end = start + spec.steps
    return replace(segment, end_step=end, end_epoch=sample_range(segment, end).epoch)


def cut_of(plan: PhaseSpec | Segment) -> tuple[object, ...]:
    """What decides which samples the epochs of a phase have, in which order, and how they are cut into slots."""
    order = plan.shuffle, plan.block_size, plan.block_window, plan.weights
    return plan.data_len, plan.batch_size, plan.drop_last, *order


def samples_at(positions: Indices, plan: PhaseSpec | Segment, seed: int, epoch: int) -> Indices:
    """The samples at `positions` of an epoch of `plan`, which draws no samples by weight."""
    if not plan.shuffle:
        return positions
    if plan.block_size:
        return permute_blocks(positions, plan.data_len, plan.block_size, plan.block_window, seed, epoch)
    return permute(positions, plan.data_len, seed, epoch)


class Order:
    """Computes the samples of slots. Keeps the last few computed chunks of positions.

    `upto` are the cumulative weights of the samples, for phases that draw by weight.
    """

    def __init__(self, seed: int, upto: Weights | None = None) -> None:
        self.seed = seed
        self._upto = upto
        self._chunks: OrderedDict[tuple[object, ...], Indices] = OrderedDict()

    def samples(self, segment: Segment, step: int, slot: int) -> Indices:
        """The samples of one slot, in order."""
        at = sample_range(segment, step)
        start = at.offset + slot * segment.batch_size
        stop = min(start + segment.batch_size, at.offset + at.samples)
        if not segment.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        while start < stop:
            chunk = start // _CHUNK
            end = min(stop, (chunk + 1) * _CHUNK)
            base = chunk * _CHUNK
            parts.append(self._chunk(segment, at.epoch, chunk)[start - base : end - base])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, segment: Segment, epoch: int, chunk: int) -> Indices:
        key = (segment.data_len, segment.block_size, segment.block_window, segment.weights, epoch, chunk)
        found = self._chunks.get(key)
        if found is None:
            positions = np.arange(chunk * _CHUNK, min((chunk + 1) * _CHUNK, segment.data_len), dtype=np.int64)
            if segment.weights:
                assert self._upto is not None, "this phase draws its samples by weight"
                found = draw(positions, self._upto, self.seed, epoch)
            else:
                found = samples_at(positions, segment, self.seed, epoch)
            self._chunks[key] = found
            if len(self._chunks) > 8:
                self._chunks.popitem(last=False)
        return found
