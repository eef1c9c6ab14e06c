"""Reads that wait for a commit, found without looking at the others."""

from __future__ import annotations

from heapq import heappop, heappush

from paceline.messages import Pull
from paceline.types import NodeId

_Key = tuple[NodeId, tuple[int, ...] | None]


class Parking:
    """Each pull waits for one thing at a time; whoever takes it out looks whether it must wait for another.

    A peer has at most one pull of the same blocks in here: the newest. Repetitions change nothing.
    """

    def __init__(self) -> None:
        self._pulls: dict[NodeId, dict[tuple[int, ...] | None, Pull]] = {}
        self._early: list[_Key] = []
        self._by_version: dict[int, list[_Key]] = {}
        self._by_step: dict[int, list[_Key]] = {}
        self._by_watermark: list[tuple[int, int, _Key]] = []
        self._count = 0

    def __len__(self) -> int:
        """Pulls that wait."""
        return sum(len(pulls) for pulls in self._pulls.values())

    def wait(
        self,
        sender: NodeId,
        pull: Pull,
        *,
        version: int | None = None,
        step: int | None = None,
        watermark: int | None = None,
    ) -> None:
        """Park a pull until that version is applied, that step committed or that watermark reached.

        With none of them it waits until there are blocks at all.
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
            self._early.append(key)

    def early(self) -> list[tuple[NodeId, Pull]]:
        """Take out those that came before there was anything to read."""
        keys, self._early = self._early, []
        return self._take(keys)

    def restart(self) -> None:
        """Everything that waits, whatever for, is looked at again with the next `early`."""
        self._early = [(sender, blocks) for sender, pulls in self._pulls.items() for blocks in pulls]
        self._by_version.clear()
        self._by_step.clear()
        self._by_watermark.clear()

    def committed(self, version: int, step: int, watermark: int) -> list[tuple[NodeId, Pull]]:
        """Take out those for whom this commit may have been the one."""
        keys = self._by_version.pop(version, [])
        keys += self._by_step.pop(step, [])
        while self._by_watermark and self._by_watermark[0][0] <= watermark:
            keys.append(heappop(self._by_watermark)[2])
        return self._take(keys)

    def forget(self, peer: NodeId) -> None:
        """Nobody waits there any more."""
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
