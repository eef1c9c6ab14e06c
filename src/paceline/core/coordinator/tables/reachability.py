"""Reports of peers that cannot reach each other."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.types import NodeId

BELIEVED_S = 5.0
"""How long a report of a worker counts; the worker repeats it while it is true."""

UNTIL_TRIED_S = 60.0
"""How long a report of a server counts; the server is asked to try again, and reports if it reaches its peer."""

_MEMORY_S = 60.0  # seconds after its end for which a report is remembered
_LONGEST_S = 8.0  # seconds: the longest delay before an unstable connection counts as restored, plus one


@dataclass(slots=True)
class _Cut:
    since: float
    until: float
    times: int = 1
    over: bool = False


class Reach:
    """Reports of peers that do not answer. `cut_off` are workers that cannot reach a primary.

    `barred` are processes that must hold no blocks: members with whom the others cannot sum.
    """

    def __init__(self) -> None:
        self.cut_off: frozenset[NodeId] = frozenset()
        self.barred: frozenset[NodeId] = frozenset()
        self._cuts: dict[tuple[NodeId, NodeId], _Cut] = {}

    def report(self, node: NodeId, peer: NodeId, now: float, lasts_s: float) -> float:
        """Note that `node` cannot reach `peer`, for `lasts_s`; returns for how long `node` has reported it."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if cut.until > now - _MEMORY_S}
        cut = self._cuts.get((node, peer))
        if cut is None:
            cut = self._cuts[node, peer] = _Cut(now, now)
        elif cut.over or cut.until <= now:
            cut.since, cut.times, cut.over = now, cut.times + 1, False
        cut.until = max(cut.until, now + lasts_s)
        return now - cut.since

    def restore(self, node: NodeId, peer: NodeId, now: float, *, wary: bool = False) -> None:
        """Note that `node` reaches `peer` again. With `wary`, an unstable connection stays cut longer each time."""
        cut = self._cuts.get((node, peer))
        if cut is not None and not cut.over:
            cut.over = True
            cut.until = min(cut.until, now + (min(2.0 ** (cut.times - 1), _LONGEST_S) - 1.0 if wary else 0.0))

    def cut(self, workers: frozenset[NodeId]) -> None:
        """Set the workers that cannot reach some primary."""
        self.cut_off = workers

    def bar(self, node: NodeId) -> None:
        """Let a process hold no blocks from now on."""
        self.barred |= {node}

    def forget(self, node: NodeId) -> None:
        """Forget the reports by and about `node`, which is gone."""
        self._cuts = {pair: cut for pair, cut in self._cuts.items() if node not in pair}

    def cuts(self, now: float) -> frozenset[tuple[NodeId, NodeId]]:
        """Pairs of peers of which the first cannot reach the second, by the reports that count at `now`."""
        return frozenset(pair for pair, cut in self._cuts.items() if cut.until > now) if self._cuts else frozenset()

    def untried(self, now: float) -> list[tuple[NodeId, NodeId]]:
        """Pairs of which the first has not reported that it reaches the second again."""
        return sorted(pair for pair, cut in self._cuts.items() if cut.until > now and not cut.over)

    def next_end(self, now: float) -> float | None:
        """The time at which the next report ceases to count; None without reports."""
        return min((cut.until for cut in self._cuts.values() if cut.until > now), default=None)
