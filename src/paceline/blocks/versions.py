"""The readable versions of all chunks. The next version is written to other memory, which has no readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from paceline.blocks.chunks import Buffer, Chunk, LentFrame
from paceline.messages import BlockFrame
from paceline.transport.base import Memory
from paceline.types import BlockSpec


class _Version(NamedTuple):
    """One readable version: the buffer of each chunk, and for each block the version that changed it last."""

    buffers: dict[int, Buffer]
    changed: dict[int, int]


_Answer = tuple[tuple[BlockFrame, ...], Sequence[object]]
_NEVER_READ: tuple[tuple[int, int], _Answer] = (-2, -2), ((), ())


class ChunkVersions(NamedTuple):
    """All versions of one chunk, to be moved from one `Versions` to another.

    `changed` has, for each block, the version that changed it last. `kept` has the versions that must stay readable,
    each with such a `changed` of its own. `spare` are buffers to be used again.
    """

    chunk: Chunk
    current: Buffer
    changed: dict[int, int]
    kept: dict[int, tuple[Buffer, dict[int, int]]]
    spare: list[Buffer]


class Versions:
    """The buffers of the current version, which is `number`, and of the versions that are kept.

    Each chunk has a number; `chunk_of` has the chunk of each block. A buffer that no version needs is used again once
    its readers are done. So each chunk has two buffers, and one more for each version that is kept or still read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.open((), ())

    def open(self, chunks: Sequence[Chunk], blocks: Sequence[BlockSpec]) -> None:
        """Allocate `chunks`, which have no values yet, and forget all others."""
        self.chunks: dict[int, Chunk] = {}
        self.chunk_of: dict[int, int] = {}
        self._last_read = _NEVER_READ
        self.number = -1
        self._frames: dict[int, BlockFrame] = {}
        self._now = _Version({}, {})
        self._ahead: _Version | None = None
        self._kept: dict[int, _Version] = {}
        self._spare: dict[int, list[Buffer]] = {}
        self._next = 0
        for chunk in chunks:
            self.add(ChunkVersions(chunk, self._new(chunk), dict.fromkeys(chunk.blocks, 0), {}, []))
        self.declare(blocks)

    def _new(self, chunk: Chunk) -> Buffer:
        return Buffer(chunk, self._memory.allocate(chunk.nbytes))

    @property
    def current(self) -> Mapping[int, Buffer]:
        """The buffer of each chunk in the current version."""
        return self._now.buffers

    def begin(self, version: int) -> None:
        """Give the current version the number `version`; calls of `switch` then set the chunks that it changes."""
        self._last_read = _NEVER_READ
        self._ahead = None
        self.number = version

    def fresh(self, chunk: int) -> Buffer:
        """A buffer for the next version of a chunk; its content is undefined."""
        spare = self._spare[chunk]
        idle = [b for b in spare if b.idle]
        if not idle:
            return self._new(self.chunks[chunk])
        self._spare[chunk] = [b for b in spare if b not in idle]
        return idle[0]

    def put_back(self, chunk: int, buffer: Buffer) -> None:
        """Give back `buffer`, which `fresh` returned and which is not needed. The next version is readable no more."""
        self._last_read = _NEVER_READ
        self._ahead = None
        self._spare[chunk].append(buffer)

    def switch(self, chunk: int, buffer: Buffer, changed: Iterable[int]) -> None:
        """Make `buffer` the current version of a chunk; the blocks `changed` differ from the version before."""
        self._last_read = _NEVER_READ
        old = self._now.buffers[chunk]
        self._now.buffers[chunk] = buffer
        for index in changed:
            self._now.changed[index] = self.number
        self._reuse(chunk, old)

    def reset(self, version: int) -> None:
        """Note that all blocks are at `version`, which changed every block."""
        self._last_read = _NEVER_READ
        self.number = version
        for index in self._now.changed:
            self._now.changed[index] = version

    # ------------------------------------------------------------ the next version

    @property
    def ahead(self) -> int:
        """The version after the current one, if it can be read already; otherwise -1."""
        return -1 if self._ahead is None else self.number + 1

    def offer_ahead(self, made: Mapping[int, tuple[Buffer, Collection[int]]]) -> None:
        """Make the next version readable: `made` has the new buffer, and the changed blocks, of each changed chunk."""
        self._last_read = _NEVER_READ
        buffers, changed = dict(self._now.buffers), dict(self._now.changed)
        for chunk, (buffer, blocks) in made.items():
            buffers[chunk] = buffer
            changed.update(dict.fromkeys(blocks, self.number + 1))
        self._ahead = _Version(buffers, changed)

    # ------------------------------------------------------------ readers

    def keep(self, version: int) -> None:
        """Keep the current version, which is `version`, readable until `release`."""
        if self.chunks:
            assert version == self.number
            self._kept[version] = _Version(dict(self._now.buffers), dict(self._now.changed))

    def release(self, version: int) -> None:
        """Stop keeping `version` readable. An unknown version is ignored."""
        self._last_read = _NEVER_READ
        kept = self._kept.pop(version, None)
        for chunk, buffer in (kept.buffers if kept is not None else {}).items():
            if buffer is not self._now.buffers[chunk]:
                self._reuse(chunk, buffer)

    def _reuse(self, chunk: int, buffer: Buffer) -> None:
        if not any(buffer is kept.buffers.get(chunk) for kept in self._kept.values()):
            self._spare[chunk].append(buffer)

    def read(self, version: int, have: int, blocks: Sequence[int] | None) -> _Answer:
        """The blocks of `version` (current, kept or `ahead`) that changed after version `have` of the reader.

        The payload has a `LentFrame` for each. `blocks` limits the answer to some blocks. Several workers read the same
        blocks, so the last answer is kept until a version changes.
        """
        if blocks is None and self._last_read[0] == (version, have):
            return self._last_read[1]
        buffers, changed = self._version(version)
        wanted = self._frames if blocks is None else blocks
        found = [index for index in wanted if changed[index] > have or have < 0]
        chunk_of = self.chunk_of
        read = [(i, buffers[chunk_of[i]]) for i in found]
        answer = tuple([self._frames[i] for i in found]), [LentFrame(buffer.frames[i], buffer) for i, buffer in read]
        if blocks is None:
            self._last_read = (version, have), answer
        return answer

    def _version(self, version: int) -> _Version:
        if version == self.number:
            return self._now
        if self._ahead is not None and version == self.number + 1:
            return self._ahead
        return self._kept[version]

    # ------------------------------------------------------------ chunks that are added or removed

    def declare(self, blocks: Iterable[BlockSpec]) -> None:
        """Set the blocks that readers get: those of all chunks, in the order of the model."""
        self._last_read = _NEVER_READ
        self._frames = {b.index: BlockFrame(b.index, b.dtype, b.numel) for b in sorted(blocks, key=lambda b: b.index)}

    def add(self, moved: ChunkVersions) -> int:
        """Add one chunk with its versions; returns its number."""
        self._last_read = _NEVER_READ
        self._ahead = None
        number, self._next = self._next, self._next + 1
        self.chunks[number] = moved.chunk
        self.chunk_of.update(dict.fromkeys(moved.chunk.blocks, number))
        self._now.buffers[number] = moved.current
        self._now.changed.update(moved.changed)
        self._spare[number] = moved.spare
        for version, (buffer, changed) in moved.kept.items():
            kept = self._kept.setdefault(version, _Version({}, {}))
            kept.buffers[number] = buffer
            kept.changed.update(changed)
        return number

    def remove(self, number: int) -> ChunkVersions:
        """Remove one chunk, and return it with its versions."""
        self._last_read = _NEVER_READ
        self._ahead = None
        chunk = self.chunks.pop(number)
        kept = {}
        for version, (buffers, changed) in self._kept.items():
            if number in buffers:
                kept[version] = buffers.pop(number), {i: changed.pop(i) for i in chunk.blocks}
        for index in chunk.blocks:
            del self.chunk_of[index]
        current = {i: self._now.changed.pop(i) for i in chunk.blocks}
        return ChunkVersions(chunk, self._now.buffers.pop(number), current, kept, self._spare.pop(number))
