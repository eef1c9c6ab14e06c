"""Processes that live and do not answer. Pure: it touches no process and no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.core.running_time import RunningTime
from paceline.messages.status import Status
from paceline.runtime.roles import COORDINATOR, HangRule, role_of


class HangDetection:
    """Finds processes that took part in a run and do not any more, for longer than `limit_s`, though they live.

    The role's `hang_rule` says how: the coordinator hangs when it does not answer the engine; a server hangs when the
    coordinator goes on answering and does not name it. Time in which the engine itself did not run does not count, nor
    time before a process first takes part: it may have much to read.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._engine_ran = RunningTime()
        self._coordinator_ran = RunningTime()
        self._heard: dict[tuple[str, int], float] = {}

    def see(
        self, now: float, alive: Mapping[str, int], taking_part: Collection[tuple[str, int]] | None
    ) -> dict[str, float]:
        """Names of processes that hang, each once, with the seconds of their silence.

        `alive` are the starts of live processes by name. `taking_part` are the processes in a new status, as (name,
        start); None if there is no new status.
        """
        ran = self._engine_ran.advance(now)
        told = self._coordinator_ran.value if taking_part is None else self._coordinator_ran.advance(now)
        self._heard = {process: at for process, at in self._heard.items() if alive.get(process[0]) == process[1]}
        found = {}
        for name, start in alive.items():
            process, rule = (name, start), role_of(name).hang_rule
            clock = ran if rule is HangRule.ENGINE else told
            if taking_part is not None and process in taking_part:
                self._heard[process] = clock
            silent_s = clock - self._heard.get(process, clock)
            if silent_s > self.limit_s and rule is not HangRule.NEVER:
                found[name] = silent_s
                self._heard.pop(process, None)
        return found


def taking_part(status: Status) -> set[tuple[str, int]]:
    """The processes of a run as (name, start): those that its coordinator knows, and the coordinator."""
    return {(process.name, process.start) for process in status.processes} | {(COORDINATOR.name, status.start)}
