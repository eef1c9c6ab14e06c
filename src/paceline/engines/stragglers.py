"""Decides what to do with workers whose scripts go on after the job is complete. Pure: it touches no process."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.engines.actions import Action, Dismiss, Tell
from paceline.messages.status import Status

_TELL_S = 5.0  # seconds: workers that end sooner are not worth a word
_AGAIN_S = 60.0  # seconds between two words about the same worker

_BEFORE, _IN, _AFTER = "before", "in", "after"
_WHERE = {
    _BEFORE: "has not come to its loop",
    _IN: "is still in its loop",
    _AFTER: "goes on after its loop",
}


class Stragglers:
    """Workers that run on after another worker has come to the end of the script and every step is committed.

    A worker that is still in its loop, or has not come to it, can contribute nothing: it is ended after `grace_s`
    seconds, and the job is complete without it. A worker that has left its loop may evaluate or save: it is awaited.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._where: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def started(self, name: str) -> None:
        """Take note that the process called `name` was started: its script is before its loop."""
        self._where.pop(name, None)

    def note(self, status: Status) -> None:
        """Take note of where each script is. A worker that the coordinator has lost is where it was last."""
        self._where |= dict.fromkeys(status.left, _AFTER)
        self._where |= {process.name: process.script for process in status.processes}

    def see(self, running: Collection[str], now: float) -> Iterator[Action]:
        """The actions for the workers that are `running` though the job is complete. Empty if it is not complete."""
        self._since = {name: self._since.get(name, now) for name in running}
        self._told = {name: at for name, at in self._told.items() if name in running}
        for name in running:
            where, waited_s = self._where.get(name, _BEFORE), now - self._since[name]
            if where != _AFTER and waited_s >= self._grace_s:
                why = f"its script {_WHERE[where]} {waited_s:.0f} s after the job was complete"
                yield Tell(f"{name} is killed: {why}. The result does not need it", warning=True)
                yield Dismiss(name)
            elif waited_s >= _TELL_S and now - self._told.get(name, -_AGAIN_S) >= _AGAIN_S:
                self._told[name] = now
                limit = f"; it is killed after {self._grace_s:g} s (PACELINE_TIMEOUT_S)" * (where != _AFTER)
                waits = f"the job is complete; waits for {name}, {waited_s:.0f} s so far"
                yield Tell(f"{waits}: its script {_WHERE[where]}{limit}")
