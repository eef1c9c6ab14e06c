"""Which of several predictors gets a request, and what happens to the requests of one that dies."""

from __future__ import annotations

from dataclasses import dataclass

_ATTEMPTS = 2  # a request that ends predictors must not end all of them


@dataclass(slots=True)
class _Given:
    predictor: str
    attempts: int


class Balance:
    """The requests under way, by predictor. Changed only by its methods.

    A request goes to the ready predictor with the fewest requests under way; of equal ones, to the one that has waited
    longest. If that predictor dies, the request goes to another one, once.
    """

    def __init__(self) -> None:
        self._load: dict[str, int] = {}
        self._turn: dict[str, int] = {}
        self._given: dict[int, _Given] = {}
        self._count = 0

    @property
    def ready(self) -> tuple[str, ...]:
        """The predictors that can answer."""
        return tuple(self._load)

    @property
    def under_way(self) -> int:
        """How many requests have no answer yet."""
        return len(self._given)

    def add(self, predictor: str) -> None:
        """Note that a predictor can answer."""
        self._load.setdefault(predictor, 0)
        self._turn.setdefault(predictor, 0)

    def give(self, ticket: int) -> str | None:
        """Choose the predictor of a request, which is new or was taken from a dead one; None: none can answer."""
        if not self._load:
            return None
        chosen = min(self._load, key=lambda name: (self._load[name], self._turn[name]))
        self._count += 1
        self._load[chosen] += 1
        self._turn[chosen] = self._count
        known = self._given.get(ticket)
        self._given[ticket] = _Given(chosen, 1 if known is None else known.attempts + 1)
        return chosen

    def done(self, ticket: int) -> None:
        """Note that a request has its answer, or is given up."""
        given = self._given.pop(ticket, None)
        if given is not None and given.predictor in self._load:
            self._load[given.predictor] -= 1

    def lost(self, predictor: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Remove a predictor; returns its requests: those to give to another one, and those that were tried enough."""
        self._load.pop(predictor, None)
        self._turn.pop(predictor, None)
        mine = [ticket for ticket, given in self._given.items() if given.predictor == predictor]
        again = tuple(ticket for ticket in mine if self._given[ticket].attempts < _ATTEMPTS)
        for ticket in mine:
            if ticket not in again:
                del self._given[ticket]
        return again, tuple(ticket for ticket in mine if ticket not in again)
