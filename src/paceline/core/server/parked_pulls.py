"""Pulls that wait for a version, a step or a watermark. A commit finds those that it answers without a search."""

from __future__ import annotations

from heapq import heappop, heappush

from paceline.messages import Pull
from paceline.types import NodeId

_Key = tuple[NodeId, tuple[int, ...] | None]


class ParkedPulls:
    """Parked pulls. Each waits for one condition; the caller that takes it out checks whether it must wait longer.

    A peer has at most one parked pull of the same blocks: the newest. A repeated pull changes nothing.
    """

    def __init__(self) -> None:
        self._pulls: dict[NodeId, dict[tuple[int, ...] | None, Pull]] = {}
        self._unconditional: list[_Key] = []
        self._by_version: dict[int, list[_Key]] = {}
        self._by_step: dict[int, list[_Key]] = {}
        self._by_watermark: list[tuple[int, int, _Key]] = []
        self._count = 0

    def __len__(self) -> int:
        """Number of parked pulls."""
        return sum(len(pulls) for pulls in self._pulls.values())

    def park(
        self,
        sender: NodeId,
        pull: Pull,
        *,
        version: int | None = None,
        step: int | None = None,
        watermark: int | None = None,
    ) -> None:
        """Park a pull until `version` is applied, `step` is committed, or `watermark` is reached.

        Without any of these, the pull waits for the next placement.
        """
        pulls = self._pulls.setdefault(sender, {})
        known = pulls.get(pull.blocks)
        if known is not None and pull.req <= known.req:
            return
        pulls[pull.blocks] = pull
        key = (sender, pull.blocks)
        if version is not None:
            self._by_version.setdefault(version, []).append(key)
        elif step is not None:
            self._by_step.setdefault(step, []).append(key)
        elif watermark is not None:
            self._count += 1
            heappush(self._by_watermark, (watermark, self._count, key))
        else:
            self._unconditional.append(key)

    def take_unconditional(self) -> list[tuple[NodeId, Pull]]:
        """Take out the pulls that wait for the next placement."""
        keys, self._unconditional = self._unconditional, []
        return self._take(keys)

    def clear_conditions(self) -> None:
        """Let every pull wait for the next placement, instead of its condition."""
        self._unconditional = [(sender, blocks) for sender, pulls in self._pulls.items() for blocks in pulls]
        self._by_version.clear()
        self._by_step.clear()
        self._by_watermark.clear()

    def take_committed(self, version: int, step: int, watermark: int) -> list[tuple[NodeId, Pull]]:
        """Take out the pulls whose condition this commit meets."""
        keys = self._by_version.pop(version, [])
        keys += self._by_step.pop(step, [])
        while self._by_watermark and self._by_watermark[0][0] <= watermark:
            keys.append(heappop(self._by_watermark)[2])
        return self._take(keys)

    def take_ahead(self, version: int) -> list[tuple[NodeId, Pull]]:
        """Take out the pulls that may read `version` before its commit."""
        keys = self._by_version.get(version, [])
        early = [(s, b) for s, b in keys if (pull := self._pulls.get(s, {}).get(b)) is not None and pull.ahead]
        if early:
            self._by_version[version] = [key for key in keys if key not in early]
        return self._take(early)

    def drop(self, peer: NodeId) -> None:
        """Drop the pulls of `peer`."""
        self._pulls.pop(peer, None)

    def _take(self, keys: list[_Key]) -> list[tuple[NodeId, Pull]]:
        taken = []
        for sender, blocks in keys:
            pulls = self._pulls.get(sender)
            pull = None if pulls is None else pulls.pop(blocks, None)
            if pull is not None:
                taken.append((sender, pull))
            if pulls is not None and not pulls:
                del self._pulls[sender]
        return taken
