"""Decides which processes to start again, after which pause, and how often. It touches no process and no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.runtime.roles import registered, role_of

QUICK_S = 10.0
"""Seconds: a process that dies within this time after its start has died quickly."""

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start the process again after `after_s` seconds. `counted` is how often it has died and was started again."""

    after_s: float
    counted: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start the process again: it died quickly `deaths` times in a row, which is more than the limit."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Do not start the process again: it ended as intended."""


Decision = Again | GiveUp | Stay


@dataclass(slots=True)
class _Life:
    """The current process of one name. `since` is the last commit when the process was first seen to take part.

    `useful` says that a later commit was made while the process took part.
    """

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
    """Decides whether to start a process again after its end.

    A process that dies is started again; its role says which exit codes are deaths. After `limit` quick deaths in a row
    of one name, the next quick death is final; with a limit of 0 every death is final. The pause before a restart grows
    with the quick deaths in a row of processes that took part in no commit: a process that is killed while it works
    restarts at once, and one that cannot work does not keep the machine busy.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lives: dict[str, _Life] = {}
        self._records: dict[str, _Record] = {}

    @property
    def restarts(self) -> dict[str, int]:
        """How many times processes died and were started again, by role."""
        totals = {role.name: 0 for role in reversed(registered())}
        for name, record in self._records.items():
            totals[role_of(name).name] += record.restarts
        return totals

    def started(self, name: str, start: int, now: float) -> None:
        """Take note that start number `start` of the process called `name` was made."""
        self._lives[name] = _Life(start, now)

    def saw(self, processes: Collection[tuple[str, int]], incarnation: int, version: int) -> None:
        """Take note of the (name, start) of each process that takes part, and of the last commit of the run."""
        at = (incarnation, version)
        for name, life in self._lives.items():
            if (name, life.start) not in processes:
                continue
            if life.since is None or life.since[0] != incarnation:
                life.since = at
            elif at > life.since:
                life.useful = True

    def ended(self, name: str, code: int, now: float) -> Decision:
        """Decide whether to start the process called `name` again, which has ended with exit code `code`."""
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
