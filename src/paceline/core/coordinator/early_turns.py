"""Turns of workers that compute a slot and ask for the lease of their next turn. Rule 22.

They are apart from the workers that wait: a worker without a lease comes first, and thousands may be here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from paceline.messages import Turn
from paceline.types import NodeId


class EarlyTurns:
    """The open turns of workers with a lease in hand, by the step of that lease, in the order in which they asked."""

    def __init__(self) -> None:
        self._by_step: dict[int, dict[NodeId, Turn]] = {}
        self._step_of: dict[NodeId, int] = {}

    def __len__(self) -> int:
        """The number of turns."""
        return len(self._step_of)

    def add(self, node: NodeId, turn: Turn, step: int) -> None:
        """Add the turn of `node`, which has a lease of `step` in hand."""
        self.pop(node)
        self._by_step.setdefault(step, {})[node] = turn
        self._step_of[node] = step

    def pop(self, node: NodeId) -> None:
        """Remove the turn of `node`, if there is one."""
        step = self._step_of.pop(node, None)
        if step is not None:
            turns = self._by_step[step]
            del turns[node]
            if not turns:
                del self._by_step[step]

    def steps(self) -> list[int]:
        """The steps of the leases in hand, lowest first."""
        return sorted(self._by_step)

    def of_step(self, step: int) -> Iterator[tuple[NodeId, Turn]]:
        """The turns of workers with a lease of `step` in hand, in order. The caller may remove the one it was given."""
        turns, passed = self._by_step.get(step, {}), 0
        while (item := next(islice(turns.items(), passed, None), None)) is not None:
            yield item
            passed += item[0] in turns

    def clear(self) -> None:
        """Forget all turns."""
        self._by_step.clear()
        self._step_of.clear()
