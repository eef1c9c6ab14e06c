"""Turns of workers that compute a slot and ask for the lease of their next turn. Rule 22.

They are apart from the workers that wait: a worker without a lease comes first, and thousands may be here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output
from paceline.core.coordinator.offers import Offers
from paceline.core.effects import Send
from paceline.messages import Revoke, Turn
from paceline.types import NodeId


def in_order(turns: Mapping[NodeId, Turn]) -> Iterator[tuple[NodeId, Turn]]:
    """Turns that wait, in order. The caller may remove the one that it was given last.

    Thousands may wait, and most callers stop after one or two of them: so the queue is copied in parts.
    """
    kept, size = 0, 2
    while part := list(islice(turns.items(), kept, kept + size)):
        before = len(turns)
        yield from part
        kept += len(part) - (before - len(turns))
        size *= 2


class EarlyTurns:
    """The open turns of workers with a lease in hand, by the step of that lease. A part of `Leasing`."""

    def __init__(self, tables: Tables, offers: Offers) -> None:
        self._identity = tables.identity
        self._leases = tables.leases
        self._offers = offers
        self._by_step: dict[int, dict[NodeId, Turn]] = {}
        self._step_of: dict[NodeId, int] = {}

    def __contains__(self, node: object) -> bool:
        """Whether the turn of `node` waits here."""
        return node in self._step_of

    def __len__(self) -> int:
        """The number of turns that wait."""
        return len(self._step_of)

    def answer(self, node: NodeId, turn: Turn, waiting: Collection[NodeId]) -> list[Output]:
        """Answer the turn of `node` with the lease of its next turn, now or later.

        A worker whose lease in hand has ended is told so. It asks again once it has no lease.
        """
        step = self._leases.live.step_in_hand(turn.held)
        if step is None:
            return self.ended(node, turn)
        if not self._offers.is_too_early(node, step):
            reply = self._offers.offer_next(node, turn, step, waiting)
            if reply is not None:
                return [Send(node, reply)]
        self.pop(node)
        turns = self._by_step.get(step)
        if turns is None:
            self._by_step[step] = {node: turn}
        else:
            turns[node] = turn
        self._step_of[node] = step
        return []

    def ended(self, node: NodeId, turn: Turn) -> list[Output]:
        """Revoke the leases in hand that have ended: the first word about it may be lost."""
        live, generation = self._leases.live, self._identity.generation
        return [Send(node, Revoke(generation, fence)) for fence in turn.held if not live.is_open(fence)]

    def offer(self, waiting: Collection[NodeId]) -> list[Output]:
        """Offer free slots of later steps, in the order of the steps in hand, then in the order of asking."""
        out: list[Output] = []
        for step in sorted(self._by_step):
            for node, turn in in_order(self._by_step[step]):
                reply = self._offers.offer_next(node, turn, step, waiting)
                if reply is not None:
                    self.pop(node)
                    out.append(Send(node, reply))
                elif not self._offers.held_back:
                    return out
        return out

    def pop(self, node: NodeId) -> None:
        """Remove the turn of `node`, if there is one."""
        if node in self._step_of:
            step = self._step_of.pop(node)
            turns = self._by_step[step]
            del turns[node]
            if not turns:
                del self._by_step[step]
