"""Decides which processes to start again, after which pause, and how often. It touches no process and no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.runtime.exit_codes import HOST_LOST
from paceline.runtime.roles import registered, role_of

QUICK_S = 10.0
"""Seconds: a process that dies within this time after its start has died quickly."""

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_MAX_PAUSE_PROVEN_S = 1.0
_PROVEN_S = 60.0
_FORK_SERVER_TRIES = 5


@dataclass(frozen=True, slots=True)
class Again:
    """Start the process again after `after_s` seconds. `counted` is how often it has died and was started again."""

    after_s: float
    counted: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start the process again: it died quickly and without use `deaths` times in a row, more than the limit."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Do not start the process again: it ended as intended."""


Decision = Again | GiveUp | Stay


@dataclass(slots=True)
class _Life:
    """The current process of one name. `since` is the last commit when the process was first seen to work.

    `useful` says that a later commit was made while the process worked.
    """

    start: int
    began: float
    since: tuple[int, int] | None = None
    useful: bool = False


@dataclass(slots=True)
class _Record:
    """All processes of one name so far. `useless` counts the quick deaths in a row of processes without use.

    `useful_at` is the time at which the last useful process of the name ended.
    """

    restarts: int = 0
    useless: int = 0
    useful_at: float | None = None


class RestartPolicy:
    """Decides whether to start a process again after its end.

    A process that dies is started again; its role says which exit codes are deaths. A process was useful if a commit
    was made after it had begun to work: so its death says nothing against the next one. After `limit` quick deaths in a
    row of processes of one name that were not useful, the next one is final; with a limit of 0 every death is final.
    The pause before a restart grows with the same count: a process that is killed while it works restarts at once, and
    one that cannot work does not keep the machine busy. If a process of the name was useful, pauses stay short, and the
    name is given up only after a minute without use: kills in quick succession are no proof that it cannot work.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lives: dict[str, _Life] = {}
        self._records: dict[str, _Record] = {}
        self._reached = -1

    @property
    def restarts(self) -> dict[str, int]:
        """How many times processes died and were started again, by role."""
        totals = {role.name: 0 for role in reversed(registered())}
        for name, record in self._records.items():
            totals[role_of(name).name] += record.restarts
        return totals

    def count(self, name: str) -> int:
        """How many times the process called `name` died and was started again."""
        record = self._records.get(name)
        return 0 if record is None else record.restarts

    def started(self, name: str, start: int, now: float) -> None:
        """Take note that start number `start` of the process called `name` was made."""
        self._lives[name] = _Life(start, now)

    def saw(self, working: Collection[tuple[str, int]], incarnation: int, version: int) -> None:
        """Take note of the (name, start) of each process that works, and of the last commit of the run.

        Steps that are computed again after a rewind prove the use of a worker only: a server that dies at the same step
        again and again would rewind the run for ever.
        """
        at = (incarnation, version)
        for name, life in self._lives.items():
            if (name, life.start) not in working:
                continue
            if life.since is None or life.since[0] != incarnation:
                life.since = at
            elif at > life.since and (role_of(name).repeats or version > self._reached):
                life.useful = True
        self._reached = max(self._reached, version)

    def ended(self, name: str, code: int, now: float) -> Decision:
        """Decide whether to start the process called `name` again, which has ended with exit code `code`."""
        role, record = role_of(name), self._records.setdefault(name, _Record())
        life = self._lives.pop(name, None)
        if code in role.restarts_itself:
            return Again(0.0, record.restarts)
        if code == HOST_LOST:
            record.restarts += 1
            return Again(0.0, record.restarts)
        if code >= 0 and code not in role.deaths:
            return Stay()
        useful = life is not None and life.useful
        quick = life is not None and now - life.began < QUICK_S
        if useful:
            record.useful_at = now
        record.useless = record.useless + 1 if quick and not useful else 0
        lately = record.useful_at is not None and now - record.useful_at < _PROVEN_S
        if (record.useless > self.limit and not lately) or self.limit == 0:
            return GiveUp(max(1, record.useless))
        record.restarts += 1
        return Again(_pause_s(record.useless, proven=lately), record.restarts)


class ForkServerRestarts:
    """Decides when to start the fork server again. Roles do not need it: they only start faster with it."""

    def __init__(self) -> None:
        self._useless = 0
        self._due: float | None = None

    def ended(self, now: float, *, was_ready: bool, replaced: bool = False) -> Decision:
        """Decide whether to start the fork server again, which has ended.

        `was_ready` says that it had loaded torch; `replaced` says that its spare has taken over.
        """
        if replaced:
            return Stay()
        self._useless = 0 if was_ready else self._useless + 1
        if self._useless >= _FORK_SERVER_TRIES:
            return GiveUp(self._useless)
        pause_s = _pause_s(self._useless, proven=False)
        self._due = now + pause_s
        return Again(pause_s, 0)

    def due(self, now: float) -> bool:
        """Whether to start the fork server now. True once after each `ended` that decided so."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True


def _pause_s(useless: int, *, proven: bool) -> float:
    """The seconds before the next start, after so many quick deaths in a row without use."""
    longest_s = _MAX_PAUSE_PROVEN_S if proven else _MAX_PAUSE_S
    return 0.0 if useless < 2 else min(_FIRST_PAUSE_S * 2.0 ** (useless - 2), longest_s)
