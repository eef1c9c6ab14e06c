"""The speed of each worker: which slots are late, and which workers are too slow for the last slots of a step."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median

from paceline.types import NodeId

_NEWEST = 0.3  # weight of the newest slot in the mean of a worker
_LATE = 3.0  # a slot is late after this many times the time that it should take
_LATE_S = 0.5  # seconds: no slot is late before this, since short slots vary much
_SLOW = 1.5  # a worker is slow if it takes more than this many times as long as the fastest worker
_OLD = 5.0  # a measurement is too old after this many times the seconds that the worker takes for a slot
_OLD_S = 2.0  # seconds: no measurement is too old before this


class WorkerSpeeds:
    """The measured seconds per slot of each worker. `note` costs O(1); `refresh` looks at all workers, at each tick.

    A slow worker that gets no slots is not measured. After a while its measurement is too old, and it gets slots again.
    """

    def __init__(self) -> None:
        self._mean: dict[NodeId, float] = {}
        self._held: dict[NodeId, float] = {}
        self._noted: dict[NodeId, float] = {}
        self._slots: dict[NodeId, int] = {}
        self.typical: float | None = None
        self._typical_held = 0.0
        self._fastest = 0.0
        self._floor = inf  # no worker is faster than this: the lowest mean since the last refresh

    def note(self, worker: NodeId, seconds: float, now: float) -> None:
        """Note that `worker` took `seconds` for a slot."""
        mean, known = seconds, self._mean.get(worker)
        if known is not None and not self._is_old(worker, known, now):
            mean = known + _NEWEST * (seconds - known)
        self._mean[worker] = mean
        self._noted[worker] = now
        self._slots[worker] = self._slots.get(worker, 0) + 1
        if mean < self._floor:
            self._floor = mean
        if self.typical is None:  # no refresh yet: without a bound, every worker would count as slow
            self._fastest = min(mean, self._fastest or mean)

    def note_held(self, worker: NodeId, held_s: float) -> None:
        """Note that `worker` sealed a slot `held_s` seconds after it could read its state.

        This includes the time in which the state travels. It says which slots are late: to lease a slot a second time
        because the network is slow makes the network slower. It says nothing about who computes fast. One slot counts
        at most as twice the mean: after a pause of the worker, the next late slot must still be found soon.
        """
        known = self._held.get(worker, held_s)
        self._held[worker] = known + _NEWEST * ((2.0 * known if held_s > 2.0 * known else held_s) - known)

    def _is_old(self, worker: NodeId, known: float, now: float) -> bool:
        age_s = now - self._noted[worker]
        return age_s > _OLD_S and age_s > _OLD * known

    def knows(self, worker: NodeId) -> bool:
        """Whether `worker` has finished a slot."""
        return worker in self._mean

    def seconds_of(self, worker: NodeId) -> float | None:
        """The seconds that `worker` takes for a slot; None if it has finished none."""
        return self._mean.get(worker)

    def shares(self) -> dict[NodeId, float]:
        """For each worker, its part of the slots that the present workers have sealed."""
        total = sum(self._slots.values())
        return {worker: slots / total for worker, slots in self._slots.items()}

    def forget(self, worker: NodeId) -> None:
        """Forget the measurements of `worker`, which is gone."""
        self._mean.pop(worker, None)
        self._held.pop(worker, None)
        self._noted.pop(worker, None)
        self._slots.pop(worker, None)

    def refresh(self) -> None:
        """Compute the median and the minimum of all workers again."""
        means = self._mean.values()
        self.typical = median(means) if means else None
        self._fastest = min(means, default=0.0)
        self._floor = min(means, default=inf)
        self._typical_held = median(self._held.values()) if self._held else 0.0

    def of(self, worker: NodeId) -> float | None:
        """The seconds that `worker` takes for a slot; the median of all workers if it has no measurement."""
        return self._mean.get(worker, self.typical)

    def is_late(self, worker: NodeId, elapsed_s: float) -> bool:
        """Whether `worker` has held a slot for much longer than it should take."""
        if self.typical is None or elapsed_s < _LATE_S:
            return False
        usual_s = max(self.typical, self._typical_held, self._mean.get(worker, 0.0), self._held.get(worker, 0.0))
        return elapsed_s > _LATE * usual_s

    def is_slow(self, worker: NodeId, now: float) -> bool:
        """Whether it can be better to lease the last slots of a step to other workers than to `worker`."""
        mean = self._mean.get(worker)
        return mean is not None and mean > _SLOW * self._fastest and not self._is_old(worker, mean, now)

    def measured(self, worker: NodeId) -> tuple[float, float]:
        """The mean of `worker`, and the time until which it counts; both 0 if there is none."""
        mean = self._mean.get(worker)
        return (0.0, 0.0) if mean is None else (mean, self._noted[worker] + max(_OLD_S, _OLD * mean))

    def would_be_slow(self, mean: float) -> bool:
        """Whether a worker with this `mean`, which counts, is slow."""
        return mean > _SLOW * self._fastest

    def most_slots(self, worker: NodeId, slots: int) -> int:
        """How many slots, at most `slots`, the fastest possible worker would finish before `worker` finished one."""
        mine = self._mean.get(worker)
        return 0 if mine is None else self._most_slots(mine, slots)

    def _most_slots(self, mine: float, slots: int) -> int:
        return _ends_before(mine, self._floor, self._floor, slots)

    def others_are_sooner(
        self, worker: NodeId, slots: int, others: Iterable[tuple[NodeId, float]], number: int
    ) -> bool:
        """Whether `others` would finish `slots` more slots before `worker` finished one.

        `others` gives for each worker the seconds for which it has held a slot (0: it has none); there are at most
        `number` of them. Late workers do not count. Takes from `others` only as many as decide the answer.
        """
        mine = self._mean.get(worker)
        return mine is not None and self.are_sooner(mine, slots, (o for o in others if o[0] != worker), number)

    def are_sooner(self, mine: float, slots: int, others: Iterable[tuple[NodeId, float]], number: int) -> bool:
        """Whether `others` would finish `slots` more slots within `mine` seconds. See `others_are_sooner`."""
        most, left = self._most_slots(mine, slots), slots
        if number * most < left:
            return False
        for other, busy_s in others:
            mean = self._mean.get(other, self.typical)
            if mean is not None and busy_s <= max(_LATE * mean, _LATE_S):
                end = max(0.0, mean - busy_s) + mean if busy_s else mean
                if end < mine:
                    left -= _ends_before(mine, end, mean, left)
                    if left <= 0:
                        return True
            number -= 1
            if number * most < left:
                return False
        return False


def _ends_before(limit: float, end: float, mean: float, most: int) -> int:
    """How many of the times `end`, `end + mean`, and so on, are before `limit`: counts up to `most` of them."""
    count = 0
    while end < limit and count < most:
        count += 1
        end += mean
    return count
