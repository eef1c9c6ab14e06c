"""Finds processes that run but do not answer. Pure: it touches no process and no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.core.running_time import RunningTime
from paceline.messages.status import Status
from paceline.runtime.roles import COORDINATOR, HangRule, role_of


class HangDetection:
    """Finds processes that run, took part in the job once, and have not taken part for longer than `limit_s` seconds.

    The role's `hang_rule` says how: the coordinator hangs when it does not answer the launcher; a server hangs when the
    coordinator answers and does not name this server. Time in which the launcher itself did not run does not count, nor
    does the time before a process first takes part: it may have to load a large model.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._engine_ran = RunningTime()
        self._coordinator_ran = RunningTime()
        self._heard: dict[tuple[str, int], float] = {}

    def see(
        self, now: float, alive: Mapping[str, int], taking_part: Collection[tuple[str, int]] | None
    ) -> dict[str, float]:
        """The names of processes that hang, with the seconds since each last took part. Each process is named once.

        `alive` maps the names of running processes to their start numbers. `taking_part` has the (name, start) of each
        process in a new status, and is None if there is no new status.
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
    """The (name, start) of each process that takes part in a run: the coordinator, and those in its `status`."""
    return {(process.name, process.start) for process in status.processes} | {(COORDINATOR.name, status.start)}


def working(status: Status) -> set[tuple[str, int]]:
    """The (name, start) of each process of `taking_part` that has done a part of the job."""
    done = {(process.name, process.start) for process in status.processes if process.works}
    return done | {(COORDINATOR.name, status.start)}
