"""Decides how long an interrupted run waits for its last checkpoint. Pure: it touches no process and no clock."""

from __future__ import annotations

from enum import Enum

from paceline.messages.status import Status

PATIENCE_S = 5.0
"""Seconds for which an interrupted run waits for its last checkpoint."""


class Next(Enum):
    """What the launcher does next."""

    ASK = "ask the coordinator for a checkpoint"
    WAIT = "wait for another status"
    OVER = "end the run"


class LastCheckpoint:
    """The last checkpoint of a run that was interrupted. `enabled` says that the run makes checkpoints at all.

    `problem` says why the last steps are in no checkpoint; it is "" if they are.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.problem = ""
        self._enabled = enabled
        self._version = 0
        self._until = 0.0

    def begin(self, status: Status | None, now: float) -> Next:
        """Decide whether to wait for a checkpoint. `status` is None if no coordinator has answered."""
        if not self._enabled:
            self.problem = "--checkpoint-every is 0"
        elif status is None or status.version < 1:
            self.problem = "no step was committed"
        elif status.failure is not None:
            self.problem = "the job had failed"
        elif status.checkpoint is None or status.checkpoint.version < status.version or status.rewinding:
            self.problem = "you did not wait for it"
            self._version, self._until = status.version, now + PATIENCE_S
            return Next.ASK
        return Next.OVER

    def see(self, status: Status | None, now: float) -> Next:
        """Decide after a new `status` that came after the coordinator's answer, or after a while without one (None)."""
        if status is not None and status.saving is None and not status.rewinding:
            if status.checkpoint is not None and status.checkpoint.version >= self._version:
                self.problem = ""
                return Next.OVER
            if status.warning:
                self.problem = status.warning
                return Next.OVER
        if now >= self._until:
            self.problem = f"it was not complete within {PATIENCE_S:.0f} s"
            return Next.OVER
        # A checkpoint that was under way holds older steps, or a change of the placement has voided the last one.
        return Next.ASK if status is not None and status.saving is None and not status.rewinding else Next.WAIT

    def lost(self) -> Next:
        """Stop waiting: the coordinator has ended."""
        self.problem = "the coordinator ended"
        return Next.OVER
