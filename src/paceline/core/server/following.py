"""Copies of another primary's blocks: sums that it sends, applied in the order of the log.

What a backup does is decided by its primary and by the log: it has no choices, so that it stays bit-identical.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence

from paceline.core.effects import Send
from paceline.core.server.block_groups import Group
from paceline.core.server.block_store import BlockStore, SumKey
from paceline.messages import CopyPart, CopyPartAck, Replicate, Replicated
from paceline.types import Commit, Fence, NodeId

_AHEAD = 4  # commits that may wait for a copy to arrive; then its primary does


class Follower(Group):
    """Blocks of which this server is an in-sync backup."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(store)
        self.sums: dict[int, dict[tuple[Fence, ...], SumKey]] = {}
        self._arriving: dict[SumKey, set[int]] = {}

    def install(self, message: Replicate, payload: Sequence[object]) -> None:
        """Hold a part of a sum; `sums` has it when all parts are here. What is held already is left as it is."""
        if message.fences in self.sums.get(message.step, ()):
            return
        key = SumKey(message.step, message.fence)
        parts = self._arriving.setdefault(key, set())
        if message.part not in parts:
            parts.add(message.part)
            self.store.install(key, message.meta, message.blocks, payload)
        if len(parts) == message.parts:
            del self._arriving[key]
            self.sums.setdefault(message.step, {})[message.fences] = key

    def apply(self, commit: Commit) -> None:
        """The sum that the log names becomes the next version; others of its step will not be any more."""
        held = self.sums.pop(commit.step, {})
        # Where attempts are interchangeable, the primary may have used others than the log names.
        fences = commit.fences if commit.fences in held else next((f for f, key in held.items() if not key.fence), None)
        assert fences is not None, f"commit of step {commit.step} before its sum was replicated"
        self.store.apply(held.pop(fences), commit)
        self.extend(commit, fences)
        for key in held.values():
            self.store.drop(key)
        self._drop_arriving(commit.step)

    def _drop_arriving(self, step: int) -> None:
        for key in [k for k in self._arriving if k.step == step]:
            del self._arriving[key]
            self.store.drop(key)

    def awaits(self, step: int) -> bool:
        """Whether `step` is committed, and not applied here yet."""
        return False

    def drop_sums(self) -> None:
        """Whatever is not committed will not be."""
        for step in {*self.sums, *(key.step for key in self._arriving)}:
            if self.awaits(step):
                continue
            for key in self.sums.pop(step, {}).values():
                self.store.drop(key)
            self._drop_arriving(step)


class Joiner(Follower):
    """Blocks of which this server is being sent a copy: as they were at `version`, then every commit after it.

    It is told of commits while the copy is still on its way: these wait, and so does the primary after a few of them.
    """

    def __init__(self, store: BlockStore, source: NodeId, version: int) -> None:
        super().__init__(store)
        self.source = source
        self.begun = self.version = version
        self.noted = False
        self._parts: set[int] = set()
        self._complete = False
        self._queue: deque[Commit] = deque()
        self._owed: list[Send] = []

    @property
    def caught_up(self) -> bool:
        """Whether everything that is committed is here, and applied."""
        return self._complete and not self._queue

    def part(self, message: CopyPart, payload: Sequence[object]) -> list[Send]:
        """A part of the copy; the answer to it."""
        if message.part not in self._parts:
            self._parts.add(message.part)
            self.store.copy_in(message.version, message.frames, payload)
            self.chains.update(message.chains)
            self._complete = len(self._parts) == message.parts
        return [Send(self.source, CopyPartAck(message.req, message.incarnation, message.epoch, message.part))]

    def answer(self, message: Replicate) -> list[Send]:
        """What to say to a sum that is held: nothing yet, if too much waits to be applied."""
        reply = Send(self.source, Replicated(message.req, message.incarnation, message.epoch))
        if len(self._queue) < _AHEAD:
            return [reply]
        if reply not in self._owed:
            self._owed.append(reply)
        return []

    def awaits(self, step: int) -> bool:
        """Whether `step` is committed, and not applied here yet."""
        return any(commit.step == step for commit in self._queue)

    def queue(self, commit: Commit) -> None:
        """`commit` is in the log."""
        self._queue.append(commit)

    def drain(self, kept: Container[int]) -> list[Send]:
        """Apply what can be. Versions that are `kept` stay readable; returns answers that were owed."""
        while self._complete and self._queue and self._queue[0].step in self.sums:
            if self.version in kept:
                self.store.keep(self.version)
            commit = self._queue.popleft()
            self.apply(commit)
            self.version = commit.version
            if self.version in kept:
                self.store.keep(self.version)
        if len(self._queue) >= _AHEAD:
            return []
        owed, self._owed = self._owed, []
        return owed
