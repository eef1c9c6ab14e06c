"""The lineage of a state: which commits, of which incarnations, made it, and which steps it contains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import merge
from typing import NamedTuple

from paceline.core.effects import IncarnationFact
from paceline.errors import StateError


class Span(NamedTuple):
    """`incarnation` made the versions `first` to `last` (None: to the newest)."""

    incarnation: int
    first: int
    last: int | None


def start_of(fact: IncarnationFact | None) -> int:
    """The version from which an incarnation begins; -1 if it begins without weights, as incarnation 0 does."""
    return -1 if fact is None or fact.position is None else fact.position.version


def lineage(
    incarnations: Iterable[IncarnationFact], of: int | None = None, until: int | None = None
) -> tuple[Span, ...]:
    """The spans, oldest first, that lead to version `until` of incarnation `of` (default: the newest of each).

    The span of an incarnation ends at the version from which the next one began. An incarnation that made none of these
    versions is left out.

    Raises:
        StateError: an incarnation is unknown, or it begins from an incarnation that is not older.
    """
    known = {fact.number: fact for fact in incarnations}
    number = max(known, default=0) if of is None else of
    spans: list[Span] = []
    while True:
        fact = known.get(number)
        if fact is None and number != 0:
            raise StateError(f"the log does not say how incarnation {number} began")
        start = start_of(fact)
        if until is None or until > start:
            spans.append(Span(number, start + 1, until))
        if fact is None or fact.position is None:
            return tuple(reversed(spans))
        if fact.position.incarnation >= number:
            raise StateError(f"incarnation {number} cannot begin from incarnation {fact.position.incarnation}")
        until = start if until is None else min(until, start)
        number = fact.position.incarnation


def shared_versions(incarnations: Iterable[IncarnationFact]) -> dict[int, int | None]:
    """The incarnations from which the newest one descends: for each, the last version that both share (None: all)."""
    known = {fact.number: fact for fact in incarnations}
    number, until = max(known, default=0), None
    shared: dict[int, int | None] = {number: None}
    while (fact := known.get(number)) is not None and fact.position is not None and fact.position.incarnation < number:
        version = fact.position.version
        until = version if until is None else min(until, version)
        number = fact.position.incarnation
        shared[number] = until
    return shared


def is_shared(shared: Mapping[int, int | None], incarnation: int, version: int) -> bool:
    """Whether `version` of `incarnation` is a version of the newest incarnation, too, by `shared_versions`."""
    return incarnation in shared and ((until := shared[incarnation]) is None or version <= until)


def committed_steps(
    low: int, above: Iterable[int], count: int, descending: Iterable[int]
) -> tuple[int, tuple[int, ...]]:
    """The lowest step that is not committed, and the committed steps above it, in order.

    Committed are the steps below `low`, the steps in `above`, and the `count` steps of `descending`, which come highest
    first. The function reads `descending` only as far as it must to find every gap: one step if there is no gap.
    """
    before = sorted(above, reverse=True)
    missing = 0
    higher: list[int] = []
    for step in merge(before, descending, reverse=True):
        missing = missing - (higher[-1] - step - 1) if higher else step + 1 - low - len(before) - count
        if missing == 0:
            return step + 1, tuple(reversed(higher))
        higher.append(step)
    return low, tuple(reversed(higher))
