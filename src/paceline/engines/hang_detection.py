"""Processes that live and do not answer. Pure: no process and no clock is touched here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.core.coordinator.membership import RunningTime
from paceline.engines.restart_policy import role_of
from paceline.messages.status import Status


class Hanging:
    """Tells who has taken part in a run and does not any more, for longer than `limit_s`, though its process lives.

    The coordinator hangs when it does not answer the engine; a server does when the coordinator goes on answering, and
    does not have it. Neither counts time in which the engine itself did not run, nor before a process has first taken
    part: it may have much to read. A worker may be deep in its script, and its slots go to others: it never hangs.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._ran = RunningTime()
        self._told = RunningTime()
        self._heard: dict[int, float] = {}

    def see(self, now: float, alive: Mapping[str, int], taking_part: Collection[int] | None) -> dict[str, float]:
        """Those who hang, each once, with how long they have; None: the coordinator has said nothing since."""
        ran = self._ran.advance(now)
        told = self._told.value if taking_part is None else self._told.advance(now)
        self._heard = {pid: at for pid, at in self._heard.items() if pid in alive.values()}
        found = {}
        for name, pid in alive.items():
            clock = ran if role_of(name) == "coordinator" else told
            if taking_part is not None and pid in taking_part:
                self._heard[pid] = clock
            silent_s = clock - self._heard.get(pid, clock)
            if silent_s > self.limit_s and role_of(name) != "worker":
                found[name] = silent_s
                self._heard.pop(pid, None)
        return found


def taking_part(status: Status) -> set[int]:
    """The processes of a run, as its coordinator knows them; itself among them."""
    return {process.pid for process in status.processes} | {status.pid}
