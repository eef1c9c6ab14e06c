"""The blocks of one store: in chunks, with their versions and optimizers, and how they move between stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.chunks import Buffer, Chunk, in_chunks
from paceline.blocks.versions import ChunkVersions, Versions
from paceline.transport.base import Delivery, Memory
from paceline.types import BlockSpec, Kind, ModelSpec


class MovedChunk(NamedTuple):
    """One chunk with its versions and its optimizer, moved from one store to another of the same process."""

    versions: ChunkVersions
    update: ChunkUpdate | None


class HeldBlocks:
    """Blocks in chunks. `updates` has the optimizer of each chunk of parameters, by the chunk's number."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._spec: ModelSpec | None = None
        self.versions = Versions(memory)
        self.blocks: Mapping[int, BlockSpec] = {}
        self.updates: dict[int, ChunkUpdate] = {}

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Allocate `blocks`, which have no values yet, and forget all others."""
        self._spec = spec
        self.blocks = {b.index: b for b in blocks}
        self.versions.open(in_chunks(blocks), blocks)
        self.updates = {n: ChunkUpdate(spec, c) for n, c in self.versions.chunks.items() if c.kind == Kind.PARAMETER}

    @property
    def spec(self) -> ModelSpec:
        """The model that the blocks belong to."""
        assert self._spec is not None, "no blocks are open"
        return self._spec

    def value(self, index: int) -> torch.Tensor:
        """The current value of block `index` (a view)."""
        number = self.versions.chunk_of[index]
        return self.versions.chunks[number].of(self.versions.current[number].tensor, index)

    def freeze(self, reader: Delivery) -> None:
        """Do not write to the current values and optimizer state until `reader` is done."""
        for buffer in self.versions.current.values():
            buffer.lend(reader)
        for update in self.updates.values():
            update.freeze(reader)

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, not copied: valid until the next update."""
        taken = {index: BlockState(self.value(index)) for index in self.blocks}
        for update in self.updates.values():
            for number, span in enumerate(update.chunk.pieces):
                for name, tensor in update.optimizer.state(number).items():
                    taken[span.block].state[span.number, name] = tensor
        return taken

    def fill(self, version: int, states: Iterator[tuple[int, BlockState]]) -> None:
        """Set all blocks to the `states` of a checkpoint of `version`."""
        optimizers = self.optimizers()
        for index, state in states:
            self.value(index).copy_(state.value)
            names: dict[int, dict[str, torch.Tensor]] = {}
            for (piece, name), tensor in state.state.items():
                names.setdefault(piece, {})[name] = tensor
            for piece, tensors in names.items():
                update, number = optimizers[index, piece]
                update.optimizer.load(number, tensors)
        self.versions.reset(version)

    def optimizers(self) -> dict[tuple[int, int], tuple[ChunkUpdate, int]]:
        """For each piece of a block: the update of its chunk, and the number of the piece in that chunk."""
        return {(p.block, p.number): (u, n) for u in self.updates.values() for n, p in enumerate(u.chunk.pieces)}

    def by_chunk(self, blocks: Iterable[int]) -> dict[int, set[int]]:
        """The chunks of `blocks`: for each, which of `blocks` it contains."""
        found: dict[int, set[int]] = {}
        for index in sorted(blocks):
            found.setdefault(self.versions.chunk_of[index], set()).add(index)
        return found

    # ------------------------------------------------------------ between stores of one process

    def take(self, blocks: Iterable[int]) -> list[MovedChunk]:
        """Remove `blocks`, and return them in chunks. A chunk is split if only some of its blocks are removed."""
        taken = []
        for number, here in self.by_chunk(blocks).items():
            moved = self._remove(number)
            rest = [i for i in moved.versions.chunk.blocks if i not in here]
            if rest:
                self._add(self._split(moved, rest))
                moved = self._split(moved, sorted(here))
            taken.append(moved)
        gone = {index for moved in taken for index in moved.versions.chunk.blocks}
        self._declare({i: b for i, b in self.blocks.items() if i not in gone})
        return taken

    def put(self, version: int, taken: Sequence[MovedChunk]) -> None:
        """Add blocks that `take` removed from another store. All blocks of this store are at `version`."""
        came = [b for moved in taken for b in moved.versions.chunk.specs]
        known = [b.index for b in came if b.index in self.blocks]
        if known:
            self.take(known)  # frees the memory that was allocated for these blocks
        for moved in taken:
            self._add(moved)
        self._declare({**self.blocks, **{b.index: b for b in came}})
        self.versions.begin(version)

    def _declare(self, blocks: dict[int, BlockSpec]) -> None:
        self.blocks = blocks
        self.versions.declare(blocks.values())

    def _remove(self, number: int) -> MovedChunk:
        return MovedChunk(self.versions.remove(number), self.updates.pop(number, None))

    def _add(self, moved: MovedChunk) -> None:
        number = self.versions.add(moved.versions)
        if moved.update is not None:
            self.updates[number] = moved.update

    def _split(self, moved: MovedChunk, blocks: Sequence[int]) -> MovedChunk:
        """A new chunk of some blocks of `moved`, with copies of their versions and optimizer state."""
        versions, old = moved.versions, moved.versions.chunk
        specs = {b.index: b for b in old.specs}
        chunk = Chunk([specs[index] for index in blocks])

        def copied(source: Buffer) -> Buffer:
            made = Buffer(chunk, self._memory.allocate(chunk.nbytes))
            for index in blocks:
                chunk.of(made.tensor, index).copy_(old.of(source.tensor, index))
            return made

        current = copied(versions.current)
        kept = {}
        for version, (buffer, changed) in versions.kept.items():
            same = buffer is versions.current
            kept[version] = (current if same else copied(buffer)), {i: changed[i] for i in blocks}
        update = None
        if moved.update is not None:
            update = ChunkUpdate(self.spec, chunk)
            numbers = {(p.block, p.number): n for n, p in enumerate(old.pieces)}
            for number, span in enumerate(chunk.pieces):
                state = moved.update.optimizer.state(numbers[span.block, span.number])
                update.optimizer.load(number, {name: tensor.clone() for name, tensor in state.items()})
        return MovedChunk(ChunkVersions(chunk, current, {i: versions.changed[i] for i in blocks}, kept, []), update)
