"""Who cannot reach whom, as far as they have said."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.types import NodeId

_FIRST_S, _LONGEST_S = 5.0, 60.0
_MEMORY_S = 600.0  # after which a pair that had no more trouble is like any other


@dataclass(slots=True)
class _Cut:
    since: float
    until: float
    term_s: float


class Reach:
    """Reports of peers that do not answer. One that is not taken back is believed for a while, longer each time."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[NodeId, NodeId], _Cut] = {}

    def report(self, node: NodeId, peer: NodeId, now: float) -> None:
        """`node` cannot reach `peer`."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if cut.until > now - _MEMORY_S}
        cut = self._cuts.get((node, peer))
        if cut is None:
            self._cuts[node, peer] = _Cut(now, now + _FIRST_S, _FIRST_S)
        elif cut.until <= now:
            cut.term_s = min(2 * cut.term_s, _LONGEST_S)
            cut.since, cut.until = now, now + cut.term_s
        else:
            cut.until = max(cut.until, now + cut.term_s / 2)

    def restore(self, node: NodeId, peer: NodeId, now: float) -> None:
        """`node` reaches `peer` again. Should it fail once more, that is believed for longer."""
        cut = self._cuts.get((node, peer))
        if cut is not None:
            cut.until = min(cut.until, now)

    def forget(self, node: NodeId) -> None:
        """`node` is gone."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if node not in pair}

    def cuts(self, now: float) -> frozenset[tuple[NodeId, NodeId]]:
        """Pairs of which the first cannot reach the second."""
        return frozenset(pair for pair, cut in self._cuts.items() if cut.until > now) if self._cuts else frozenset()

    def next_end(self, now: float) -> float | None:
        """When the next report is no longer believed."""
        return min((cut.until for cut in self._cuts.values() if cut.until > now), default=None)
