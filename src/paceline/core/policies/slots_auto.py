"""Choose the number of slots of a step by the measured speeds of the workers (`--slots auto`).

In lock-step a step takes as long as its slowest worker. With more slots a fast worker computes several while a slow one
computes one, so that fewer workers wait; with too many slots the batch grows and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace

import msgspec

_MOST = 8  # at most this many slots for each worker
_GAIN = 0.05  # part of the time: a change must gain this much, and slots within this of the best are as good


class SlotsChoice(msgspec.Struct, frozen=True):
    """Steps shall have this many slots, for this reason."""

    slots: int
    reason: str


def choose_slots(seconds: Mapping[str, float], slots: int) -> SlotsChoice | None:
    """The number of slots for workers that take so many `seconds` for a slot; None: keep `slots`.

    The lowest number is taken at which the workers are busy for nearly as much of the time as they can be.
    """
    if not seconds or min(seconds.values()) <= 0:
        return None
    most = max(slots, _MOST * len(seconds))
    busy = _busy(list(seconds.values()), most)
    best = max(busy[len(seconds) :])
    found = next(n for n in range(len(seconds), most + 1) if busy[n] >= best - _GAIN)
    if busy[found] < busy[slots] + _GAIN:
        return None
    times = ", ".join(f"{name} {s:.3g} s" for name, s in sorted(seconds.items())[:4]) + " …" * (len(seconds) > 4)
    return SlotsChoice(
        found,
        f"slots auto: a slot takes {times}; with {found} slots workers compute {busy[found]:.0%} of the time, "
        f"with {slots} {busy[slots]:.0%}",
    )


def _busy(seconds: list[float], most: int) -> list[float]:
    """For each number of slots up to `most`, the part of a step in which the workers compute.

    A free worker takes the next slot, unless another one would end it sooner.
    """
    total = sum(1.0 / s for s in seconds)
    ends = [(s, s) for s in seconds]  # when each worker would end one more slot
    heapify(ends)
    busy, makespan = [0.0], 0.0
    for count in range(1, most + 1):
        end, mean = ends[0]
        makespan = max(makespan, end)
        heapreplace(ends, (end + mean, mean))
        busy.append(count / (makespan * total))
    return busy
