"""Which sampler prepares which slot: a hash, so that workers and samplers agree without asking anybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count

from paceline.core.sampling import sample_range
from paceline.types import Segment, SlotId


def ranked(samplers: Sequence[str], segment: Segment, slot: SlotId) -> list[str]:
    """The samplers in the order in which to ask them for `slot`, by their names; the first one prepares the slot.

    Of n slots in a row that begin at a multiple of n, each sampler is the first for one: all have the same work at all
    times. A hash of the group decides which is the first for which.
    """
    names = sorted(samplers)
    first = _first(len(names), segment, slot)
    return names[first:] + names[:first]


def is_own(name: str, samplers: Sequence[str], segment: Segment, slot: SlotId) -> bool:
    """Whether the sampler `name` is the first for `slot`; `samplers` are in order."""
    return samplers[_first(len(samplers), segment, slot)] == name


def own_slots(name: str, samplers: Sequence[str], segment: Segment, after: SlotId) -> Iterator[SlotId]:
    """The slots behind `after` for which the sampler `name` is the first, in the order in which they are leased.

    The work for each is the same for any number of samplers.
    """
    names = sorted({*samplers, name})
    mine = names.index(name)
    for group in count(_number(segment, after) // len(names)):
        shift = _shift(segment, group) if len(names) > 1 else 0
        step, i = divmod(group * len(names) + (mine - shift) % len(names), segment.slots)
        slot = SlotId(segment.step + step, i)
        if slot.step >= segment.end_step:
            return
        if slot > after and i < sample_range(segment, slot.step).slots:
            yield slot


def slots_after(segment: Segment, slot: SlotId) -> Iterator[SlotId]:
    """The slots of the phase of `segment` that follow `slot`, in the order in which they are leased."""
    for step in count(slot.step):
        if step >= segment.end_step:
            return
        begin = slot.slot + 1 if step == slot.step else 0
        yield from (SlotId(step, i) for i in range(begin, sample_range(segment, step).slots))


def _first(count: int, segment: Segment, slot: SlotId) -> int:
    if count < 2:
        return 0
    group, place = divmod(_number(segment, slot), count)
    return (_shift(segment, group) + place) % count


def _number(segment: Segment, slot: SlotId) -> int:
    return (slot.step - segment.step) * segment.slots + slot.slot


def _shift(segment: Segment, group: int) -> int:
    raw = blake2b(f"paceline sampler {segment.step} {group}".encode(), digest_size=4).digest()
    return int.from_bytes(raw, "little")
