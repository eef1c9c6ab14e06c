"""Reports of slots that the worker sealed lately, which it may have to repeat or to take back."""

from __future__ import annotations

from collections import deque

from paceline.messages import Grant, HeldLease, Push, Sealed
from paceline.types import INIT_STEP, Fence

_KEPT = 4  # reports that are repeated to a new coordinator
_NONE = -2


class SealedReports:
    """The newest reports of a worker. Only its methods change them.

    `last_step` is the worker's own last step, which an asynchronous worker waits to read; -2 if there is none.
    """

    def __init__(self) -> None:
        self.last_step = _NONE
        self._void: Fence | None = None
        self._newest: deque[Sealed] = deque(maxlen=_KEPT)

    def add(self, task: Grant, report: Sealed, incarnation: int, epoch: int | None) -> None:
        """Note that the slot of `task` is sealed, unless it cannot count in this incarnation and placement epoch."""
        if task.fence == self._void or (epoch is not None and task.epoch != epoch):
            return
        if task.step != INIT_STEP:
            # In a step of several slots, to wait for one's own slot is to wait for those of the others.
            self.last_step = task.step if task.slots == 1 else _NONE
        if task.incarnation == incarnation:
            self._newest.append(report)

    def take_back(self, push: Push) -> bool:
        """A server refused a push, so its attempt will never count. False if that was known."""
        if self._void == push.fence:
            return False
        self._void = push.fence
        self._newest = deque((r for r in self._newest if r.fence != push.fence), _KEPT)
        if self.last_step == push.step:
            self.last_step = _NONE
        return True

    def leases(self, epoch: int) -> list[HeldLease]:
        """The reports, for a new coordinator that may not have received them."""
        return [HeldLease(r.step, r.slot, r.fence, r, epoch) for r in self._newest]

    def forget_last_step(self) -> None:
        """Do not wait for the worker's own last step: it may not count."""
        self.last_step = _NONE

    def clear(self) -> None:
        """None of the reports counts any more."""
        self.last_step = _NONE
        self._newest.clear()
