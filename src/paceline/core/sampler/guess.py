"""Which slots a worker will probably lease next, for its own loader processes. A wrong guess costs only work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from paceline.core.sampler.choice import slots_after
from paceline.types import Segment, SlotId

_FAR = 64  # slots between two leases of a worker beyond which nothing is guessed
_MISSES = 2  # wrong guesses in a row after which nothing is prepared ahead


class NextSlots:
    """Guesses that the distance between the leases of a worker stays what it was: one, if it works alone."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._last: SlotId | None = None
        self._distance = 1
        self._misses = 0

    def leased(self, segment: Segment, slot: SlotId) -> None:
        """Note the lease of `slot`."""
        last = self._last if segment == self._segment else None
        self._segment, self._last = segment, slot
        if last is None or slot <= last:
            return
        between = list(islice(slots_after(segment, last), _FAR))
        distance = between.index(slot) + 1 if slot in between else _FAR
        self._misses = 0 if distance == self._distance else self._misses + 1
        self._distance = distance

    def ahead(self, count: int) -> Sequence[SlotId]:
        """The next slots of this worker, at most `count`; none after wrong guesses."""
        if self._segment is None or self._last is None or self._misses >= _MISSES or self._distance >= _FAR:
            return ()
        following = islice(slots_after(self._segment, self._last), self._distance - 1, None, self._distance)
        return tuple(islice(following, count))
