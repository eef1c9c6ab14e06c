"""What a worker has sealed lately and may have to say again, or to take back."""

from __future__ import annotations

from collections import deque

from paceline.messages import Grant, HeldLease, Push, Sealed
from paceline.types import INIT_STEP, Fence

_REMEMBERED = 4  # sealed slots whose report a new coordinator is told again
_NONE = -2


class Reports:
    """The newest reports of a worker. `last_step` is the step that it may wait to read, as its own; -2 if none."""

    def __init__(self) -> None:
        self.last_step = _NONE
        self._void: Fence | None = None
        self._newest: deque[Sealed] = deque(maxlen=_REMEMBERED)

    def add(self, task: Grant, report: Sealed, incarnation: int, epoch: int | None) -> None:
        """The slot of `task` is sealed, in this incarnation and placement, where it may be too late to count."""
        if task.fence == self._void or (epoch is not None and task.epoch != epoch):
            return
        if task.step != INIT_STEP:
            # With several slots a step, waiting for one's own would be waiting for the others'.
            self.last_step = task.step if task.slots == 1 else _NONE
        if task.incarnation == incarnation:
            self._newest.append(report)

    def take_back(self, push: Push) -> bool:
        """A push was refused, so its attempt will never count; whether that is new."""
        if self._void == push.fence:
            return False
        self._void = push.fence
        self._newest = deque((r for r in self._newest if r.fence != push.fence), _REMEMBERED)
        if self.last_step == push.step:
            self.last_step = _NONE
        return True

    def leases(self, epoch: int) -> list[HeldLease]:
        """For a new coordinator, which may not have heard of them."""
        return [HeldLease(r.step, r.slot, r.fence, r, epoch) for r in self._newest]

    def doubt(self) -> None:
        """Whether the last one will count is not known now, so nobody waits to read it."""
        self.last_step = _NONE

    def clear(self) -> None:
        """None of them counts any more."""
        self.last_step = _NONE
        self._newest.clear()
