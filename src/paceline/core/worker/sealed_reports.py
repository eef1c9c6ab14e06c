"""Reports of the slots that the worker sealed last: repeated to a new coordinator, or taken back after a refusal."""

from __future__ import annotations

from collections import deque

from paceline.messages import Grant, HeldLease, Push, Sealed
from paceline.types import INIT_STEP, Fence

_KEPT = 4  # this many of the newest reports are repeated to a new coordinator
_NONE = -2  # no step


class SealedReports:
    """The newest reports of a worker. Only its methods change them.

    `last_step` is the step that this worker sealed last, which an asynchronous worker waits to read; -2: no such step.
    """

    def __init__(self) -> None:
        self.last_step = _NONE
        self._void: Fence | None = None
        self._newest: deque[tuple[Sealed, int]] = deque(maxlen=_KEPT)  # with the revision of its lease

    def add(self, task: Grant, report: Sealed, incarnation: int, epoch: int | None) -> None:
        """Note that the slot of `task` is sealed, unless it is void: refused, or of another placement `epoch`."""
        if task.fence == self._void or (epoch is not None and task.epoch != epoch):
            return
        if task.step != INIT_STEP:
            # If the step has other slots too, a wait for this step would be a wait for other workers.
            self.last_step = task.step if task.slots == 1 else _NONE
        if task.incarnation == incarnation:
            self._newest.append((report, task.revision))

    def take_back(self, push: Push) -> bool:
        """Drop the report of the attempt of `push`, which a server has refused. False if that was known before."""
        if self._void == push.fence:
            return False
        self._void = push.fence
        self._newest = deque((kept for kept in self._newest if kept[0].fence != push.fence), _KEPT)
        if self.last_step == push.step:
            self.last_step = _NONE
        return True

    def leases(self, epoch: int) -> list[HeldLease]:
        """The reports as leases, for a new coordinator that may not have received them."""
        return [HeldLease(r.step, r.slot, r.fence, r, epoch, revision) for r, revision in self._newest]

    def forget_last_step(self) -> None:
        """Forget which step was sealed last: it may never be committed, so no read may wait for it."""
        self.last_step = _NONE

    def clear(self) -> None:
        """Drop all reports: they do not count any more."""
        self.last_step = _NONE
        self._newest.clear()
