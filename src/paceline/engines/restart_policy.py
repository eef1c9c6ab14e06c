"""Who is started again, when, and when it is enough. Pure: no process and no clock is touched here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_DONE, EXIT_LOST

QUICK_S = 10.0
"""A process that dies within this time of its start has died quickly."""

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again after a pause; `counted` is how often that was done before for a death, this time included."""

    after_s: float
    counted: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It died quickly `deaths` times in a row: more than the limit allows."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Its end is not one that is retried."""


Decision = Again | GiveUp | Stay


@dataclass(slots=True)
class _Life:
    """The current life of one name. `since` is the commit at which it was first seen to take part."""

    pid: int
    began: float
    since: tuple[int, int] | None = None
    useful: bool = False


@dataclass(slots=True)
class _Record:
    restarts: int = 0
    quick: int = 0
    idle: int = 0


def role_of(name: str) -> str:
    """The role of a process by its name, such as ``worker-3``."""
    return name.split("-")[0]


class RestartPolicy:
    """Decides what follows the end of a process.

    Deaths by signal are retried, and so is a worker that lost the run or was told to start its script again. `limit`
    quick deaths in a row of one name are accepted, one more is not; with a limit of 0 no death is. The pause before a
    restart grows with quick deaths in a row during which the process took part in no commit: a role that is killed
    while it works is back at once, one that cannot work does not keep the machine busy.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lives: dict[str, _Life] = {}
        self._records: dict[str, _Record] = {}

    @property
    def restarts(self) -> dict[str, int]:
        """Deaths that were followed by another start, by role."""
        totals = {"worker": 0, "server": 0, "coordinator": 0}
        for name, record in self._records.items():
            totals[role_of(name)] += record.restarts
        return totals

    def started(self, name: str, pid: int, now: float) -> None:
        """A process was started."""
        self._lives[name] = _Life(pid, now)

    def saw(self, pids: Collection[int], incarnation: int, version: int) -> None:
        """The run's newest state: who takes part in it, and its last commit."""
        at = (incarnation, version)
        for life in self._lives.values():
            if life.pid not in pids:
                continue
            if life.since is None or life.since[0] != incarnation:
                life.since = at
            elif at > life.since:
                life.useful = True

    def ended(self, name: str, code: int, now: float) -> Decision:
        """A process ended by itself or by somebody else's hand."""
        role, record = role_of(name), self._records.setdefault(name, _Record())
        life = self._lives.pop(name, None)
        if role == "worker" and code == EXIT_AGAIN:
            return Again(0.0, record.restarts)
        # A worker's own end is its business; the other roles end only when they are told to.
        died = code < 0 or code == (EXIT_LOST if role == "worker" else EXIT_DONE)
        if not died:
            return Stay()
        quick = life is not None and now - life.began < QUICK_S
        record.quick = record.quick + 1 if quick else 0
        record.idle = record.idle + 1 if quick and life is not None and not life.useful else 0
        if record.quick > self.limit or self.limit == 0:
            return GiveUp(max(1, record.quick))
        record.restarts += 1
        pause_s = 0.0 if record.idle < 2 else min(_FIRST_PAUSE_S * 2.0 ** (record.idle - 2), _MAX_PAUSE_S)
        return Again(pause_s, record.restarts)
