"""Which processes are started again, after which pause, and how often. Pure: it touches no process and no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.runtime.roles import registered, role_of

QUICK_S = 10.0
"""A process that dies within this time of its start has died quickly."""

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again after a pause; `counted` is how often it was started again after a death, this time included."""

    after_s: float
    counted: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It died quickly `deaths` times in a row: more than the limit allows."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Do not start it again: its end was no death."""


Decision = Again | GiveUp | Stay


@dataclass(slots=True)
class _Life:
    """The current process of one name. `since` is the commit at which it was first seen to take part."""

    start: int
    began: float
    since: tuple[int, int] | None = None
    useful: bool = False


@dataclass(slots=True)
class _Record:
    restarts: int = 0
    quick: int = 0
    idle: int = 0


class RestartPolicy:
    """Decides what follows the end of a process.

    A process that dies is started again; its role says which exit codes are deaths. `limit` quick deaths in a row of
    one name are accepted, one more is not; with a limit of 0 no death is. The pause before a restart grows with quick
    deaths in a row during which the process took part in no commit: a role that is killed while it works is back at
    once, one that cannot work does not keep the machine busy.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lives: dict[str, _Life] = {}
        self._records: dict[str, _Record] = {}

    @property
    def restarts(self) -> dict[str, int]:
        """Deaths that were followed by another start, by role."""
        totals = {role.name: 0 for role in reversed(registered())}
        for name, record in self._records.items():
            totals[role_of(name).name] += record.restarts
        return totals

    def started(self, name: str, start: int, now: float) -> None:
        """Start number `start` of `name` was made."""
        self._lives[name] = _Life(start, now)

    def saw(self, processes: Collection[tuple[str, int]], incarnation: int, version: int) -> None:
        """The run's newest state: the processes that take part, as (name, start), and its last commit."""
        at = (incarnation, version)
        for name, life in self._lives.items():
            if (name, life.start) not in processes:
                continue
            if life.since is None or life.since[0] != incarnation:
                life.since = at
            elif at > life.since:
                life.useful = True

    def ended(self, name: str, code: int, now: float) -> Decision:
        """The process of `name` ended, by itself or killed."""
        role, record = role_of(name), self._records.setdefault(name, _Record())
        life = self._lives.pop(name, None)
        if code in role.restarts_itself:
            return Again(0.0, record.restarts)
        if code >= 0 and code not in role.deaths:
            return Stay()
        quick = life is not None and now - life.began < QUICK_S
        record.quick = record.quick + 1 if quick else 0
        record.idle = record.idle + 1 if quick and life is not None and not life.useful else 0
        if record.quick > self.limit or self.limit == 0:
            return GiveUp(max(1, record.quick))
        record.restarts += 1
        pause_s = 0.0 if record.idle < 2 else min(_FIRST_PAUSE_S * 2.0 ** (record.idle - 2), _MAX_PAUSE_S)
        return Again(pause_s, record.restarts)
