"""The readable versions of all chunks. The next one is written beside them, into memory that nobody reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paceline.messages import BlockFrame
from paceline.server.chunks import Buffer, Chunk, Part
from paceline.transport.base import Memory
from paceline.types import BlockSpec


class _Version(NamedTuple):
    """A buffer by chunk, and for each block the version that last changed it."""

    buffers: list[Buffer]
    changed: dict[int, int]


class Versions:
    """Buffers of the current version and of those that are kept.

    A buffer that no version needs is written again as soon as its readers are done. So there are two of each chunk,
    and one more for each version that is kept or still read.
    """

    def __init__(self, chunks: Sequence[Chunk], blocks: Sequence[BlockSpec], memory: Memory) -> None:
        self.chunks = chunks
        self._memory = memory
        self._home = {index: number for number, chunk in enumerate(chunks) for index in chunk.blocks}
        self._frames = {b.index: BlockFrame(b.index, b.dtype, b.numel) for b in sorted(blocks, key=lambda b: b.index)}
        self._now = _Version([self._new(n) for n in range(len(chunks))], dict.fromkeys(self._frames, 0))
        self._kept: dict[int, _Version] = {}
        self._spare: list[list[Buffer]] = [[] for _ in chunks]
        self.number = -1

    def _new(self, chunk: int) -> Buffer:
        return Buffer(self.chunks[chunk], self._memory.room(self.chunks[chunk].nbytes))

    @property
    def current(self) -> Sequence[Buffer]:
        """The current version, by chunk."""
        return self._now.buffers

    def fresh(self, chunk: int) -> Buffer:
        """Memory for the next version of a chunk; what it holds is of no use."""
        spare = self._spare[chunk]
        idle = [b for b in spare if b.idle]
        if not idle:
            return self._new(chunk)
        self._spare[chunk] = [b for b in spare if b not in idle]
        return idle[0]

    def put_back(self, chunk: int, buffer: Buffer) -> None:
        """`buffer`, which `fresh` gave, is not needed after all."""
        self._spare[chunk].append(buffer)

    def switch(self, chunk: int, buffer: Buffer, changed: Iterable[int]) -> None:
        """`buffer` is the current version from now on, and `changed` are the blocks in it that are not as before."""
        old = self._now.buffers[chunk]
        self._now.buffers[chunk] = buffer
        for index in changed:
            self._now.changed[index] = self.number
        self._let_go(chunk, old)

    def reset(self, version: int) -> None:
        """Everything is of `version`."""
        self.number = version
        for index in self._frames:
            self._now.changed[index] = version

    def keep(self, version: int) -> None:
        """Keep the current version readable."""
        assert version == self.number
        self._kept[version] = _Version(list(self._now.buffers), dict(self._now.changed))

    def release(self, version: int) -> None:
        """Give up a kept version, if it is one."""
        kept = self._kept.pop(version, None)
        for chunk, buffer in enumerate(kept.buffers if kept is not None else ()):
            if buffer is not self._now.buffers[chunk]:
                self._let_go(chunk, buffer)

    def _let_go(self, chunk: int, buffer: Buffer) -> None:
        if not any(buffer is kept.buffers[chunk] for kept in self._kept.values()):
            self._spare[chunk].append(buffer)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """Frames and parts of the blocks that changed after `have`."""
        buffers, changed = self._now if version == self.number else self._kept[version]
        wanted = self._frames if blocks is None else blocks
        found = [index for index in wanted if changed[index] > have or have < 0]
        home = self._home
        held = [(i, buffers[home[i]]) for i in found]
        return tuple([self._frames[i] for i in found]), [Part(buffer.frames[i], buffer) for i, buffer in held]
