"""Tells what a run waits for that makes no progress, and asks the late process for its stack. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.engines.actions import Action, Dump, Tell
from paceline.messages.status import Status

_AGAIN_S = 60.0  # seconds between two words about the same stall


class StallWatch:
    """Names each stall once, and again from time to time while it lasts."""

    def __init__(self) -> None:
        self._told: tuple[int | None, str] | None = None
        self._at = 0.0

    def see(self, status: Status, running: Collection[str], now: float) -> Iterator[Action]:
        """The actions that a status calls for; only `running` processes can be asked for their stack."""
        if not status.stall:
            self._told = None
            return
        about = status.step, status.late_process
        if about == self._told and now < self._at + _AGAIN_S:
            return
        self._told, self._at = about, now
        asked = status.late_process in running
        stack = f"; its stack follows, and is in its log: {status.late_process}.log" * asked
        yield Tell(f"no progress: {status.stall}{stack}", warning=True)
        if asked:
            yield Dump(status.late_process)
