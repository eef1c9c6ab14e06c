"""Who cannot reach whom, as far as they have said."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.types import NodeId

BELIEVED_S = 5.0
"""How long a report counts that will be said again as long as it is true."""

UNTIL_TRIED_S = 60.0
"""How long one counts that is only taken back: whoever made it tries now and then."""

_MEMORY_S = 60.0  # after which a pair that had no more trouble is like any other
_LONGEST_S = 8.0


@dataclass(slots=True)
class _Cut:
    since: float
    until: float
    times: int = 1
    over: bool = False


class Reach:
    """Reports of peers that do not answer."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[NodeId, NodeId], _Cut] = {}

    def report(self, node: NodeId, peer: NodeId, now: float, lasts_s: float) -> float:
        """`node` cannot reach `peer`; returns for how long it has said so."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if cut.until > now - _MEMORY_S}
        cut = self._cuts.get((node, peer))
        if cut is None:
            cut = self._cuts[node, peer] = _Cut(now, now)
        elif cut.over or cut.until <= now:
            cut.since, cut.times, cut.over = now, cut.times + 1, False
        cut.until = max(cut.until, now + lasts_s)
        return now - cut.since

    def restore(self, node: NodeId, peer: NodeId, now: float, *, wary: bool = False) -> None:
        """`node` reaches `peer` again. If one is `wary` of links that come and go, that is believed later each time."""
        cut = self._cuts.get((node, peer))
        if cut is not None and not cut.over:
            cut.over = True
            cut.until = min(cut.until, now + (min(2.0 ** (cut.times - 1), _LONGEST_S) - 1.0 if wary else 0.0))

    def forget(self, node: NodeId) -> None:
        """`node` is gone."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if node not in pair}

    def cuts(self, now: float) -> frozenset[tuple[NodeId, NodeId]]:
        """Pairs of which the first cannot reach the second."""
        return frozenset(pair for pair, cut in self._cuts.items() if cut.until > now) if self._cuts else frozenset()

    def untried(self, now: float) -> list[tuple[NodeId, NodeId]]:
        """Those of which it is not known that they are over."""
        return sorted(pair for pair, cut in self._cuts.items() if cut.until > now and not cut.over)

    def next_end(self, now: float) -> float | None:
        """When the next report is no longer believed."""
        return min((cut.until for cut in self._cuts.values() if cut.until > now), default=None)
