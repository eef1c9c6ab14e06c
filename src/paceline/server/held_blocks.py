"""The blocks that a server holds: where they lie, their versions, their optimizers, and how they come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.chunks import Buffer, Chunk, Part, in_chunks
from paceline.blocks.tensors import DTYPE_NAMES, bytes_of, tensor_of
from paceline.blocks.versions import Shelf, Versions
from paceline.messages import CopyFrame
from paceline.server.shared_sums import Held
from paceline.transport.base import Delivery, Memory
from paceline.types import BlockSpec, Kind, ModelSpec


class Moved(NamedTuple):
    """One chunk with all that there is of it, on its way from one store to another of the same process."""

    shelf: Shelf
    update: ChunkUpdate | None


class Holdings:
    """Blocks in chunks. `updates` has the optimizer of each chunk of parameters, by the chunk's number."""

    def __init__(self, spec: ModelSpec, blocks: Sequence[BlockSpec], memory: Memory) -> None:
        self.spec = spec
        self.blocks = {b.index: b for b in blocks}
        chunks = in_chunks(blocks)
        self.versions = Versions(chunks, blocks, memory)
        self.updates = {n: ChunkUpdate(spec, c) for n, c in self.versions.chunks.items() if c.kind == Kind.PARAMETER}
        self._memory = memory

    def value(self, index: int) -> torch.Tensor:
        """A block of the current version."""
        number = self.versions.home[index]
        return self.versions.chunks[number].of(self.versions.current[number].tensor, index)

    def freeze(self, reader: Delivery) -> None:
        """Everything, as it is now, is `reader`'s until that is done: values are lent, and updates spare the state."""
        for buffer in self.versions.current.values():
            buffer.lend(reader)
        for update in self.updates.values():
            update.freeze(reader)

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, by reference: good until the next update."""
        taken = {index: BlockState(self.value(index)) for index in self.blocks}
        for update in self.updates.values():
            for number, place in enumerate(update.chunk.places):
                for name, tensor in update.optimizer.state(number).items():
                    taken[place.block].state[place.number, name] = tensor
        return taken

    def fill(self, version: int, states: Iterator[tuple[int, BlockState]]) -> None:
        """Every block is what a checkpoint of `version` says."""
        where = self._where()
        for index, state in states:
            self.value(index).copy_(state.value)
            names: dict[int, dict[str, torch.Tensor]] = {}
            for (piece, name), tensor in state.state.items():
                names.setdefault(piece, {})[name] = tensor
            for piece, tensors in names.items():
                update, number = where[index, piece]
                update.optimizer.load(number, tensors)
        self.versions.reset(version)

    def _where(self) -> dict[tuple[int, int], tuple[ChunkUpdate, int]]:
        """The optimizer that has each piece of a block, and which of its pieces that is."""
        return {(p.block, p.number): (u, n) for u in self.updates.values() for n, p in enumerate(u.chunk.places)}

    # ------------------------------------------------------------ to and from other servers

    def copy_out(self, blocks: Iterable[int]) -> tuple[tuple[CopyFrame, ...], Sequence[Part]]:
        """These blocks with their optimizer state, as they are now, for as long as the parts are held or read."""
        held = Held()
        found: dict[int, list[tuple[CopyFrame, Part]]] = {}
        for number, here in self._by_chunk(blocks).items():
            buffer, update = self.versions.current[number], self.updates.get(number)
            buffer.lend(held.reader)
            for index in here:
                spec = self.blocks[index]
                found[index] = [(CopyFrame(index, -1, "", spec.dtype, spec.numel), Part(buffer.frames[index], held))]
            if update is not None:
                update.freeze(held.reader)
                for piece, place in enumerate(update.chunk.places):
                    for name, tensor in update.optimizer.state(piece).items() if place.block in here else ():
                        frame = _state_frame(place.block, place.number, name, tensor)
                        found[place.block].append((frame, Part(bytes_of(tensor), held)))
        pairs = [pair for index in sorted(found) for pair in found[index]]
        return tuple(frame for frame, _ in pairs), [part for _, part in pairs]

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Some of what `copy_out` gave elsewhere, at `version`. The frames are not needed afterwards."""
        where = self._where()
        for frame, content in zip(frames, payload, strict=True):
            tensor = tensor_of(cast(memoryview, content), frame.dtype)
            if not frame.name:
                self.value(frame.block).copy_(tensor)
            else:
                update, number = where[frame.block, frame.piece]
                state = tensor.clone()
                update.optimizer.load(number, {frame.name: state.reshape(()) if frame.scalar else state})
        self.versions.reset(version)

    def _by_chunk(self, blocks: Iterable[int]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for index in sorted(blocks):
            found.setdefault(self.versions.home[index], set()).add(index)
        return found

    # ------------------------------------------------------------ between stores of one process

    def take(self, blocks: Iterable[int]) -> list[Moved]:
        """These blocks are not held here any more. A chunk of which only some leave is taken apart."""
        taken = []
        for number, here in self._by_chunk(blocks).items():
            moved = self._remove(number)
            rest = [i for i in moved.shelf.chunk.blocks if i not in here]
            if rest:
                self._add(self._part(moved, rest))
                moved = self._part(moved, sorted(here))
            taken.append(moved)
        gone = {index for moved in taken for index in moved.shelf.chunk.blocks}
        self._became({i: b for i, b in self.blocks.items() if i not in gone})
        return taken

    def put(self, version: int, taken: Sequence[Moved]) -> None:
        """Hold these blocks, too, which are of `version` as all others here are."""
        came = [b for moved in taken for b in moved.shelf.chunk.specs]
        known = [b.index for b in came if b.index in self.blocks]
        if known:
            self.take(known)  # room that was made for them, and is not needed
        for moved in taken:
            self._add(moved)
        self._became({**self.blocks, **{b.index: b for b in came}})
        self.versions.number = version

    def _became(self, blocks: dict[int, BlockSpec]) -> None:
        self.blocks = blocks
        self.versions.declare(blocks.values())

    def _remove(self, number: int) -> Moved:
        return Moved(self.versions.remove(number), self.updates.pop(number, None))

    def _add(self, moved: Moved) -> None:
        number = self.versions.add(moved.shelf)
        if moved.update is not None:
            self.updates[number] = moved.update

    def _part(self, whole: Moved, blocks: Sequence[int]) -> Moved:
        """Some blocks of a chunk as a chunk of their own: copies of all that there is of them."""
        old, specs = whole.shelf.chunk, {b.index: b for b in whole.shelf.chunk.specs}
        chunk = Chunk([specs[index] for index in blocks])

        def copied(source: Buffer) -> Buffer:
            made = Buffer(chunk, self._memory.allocate(chunk.nbytes))
            for index in blocks:
                chunk.of(made.tensor, index).copy_(old.of(source.tensor, index))
            return made

        current = copied(whole.shelf.current)
        kept = {}
        for version, (buffer, changed) in whole.shelf.kept.items():
            same = buffer is whole.shelf.current
            kept[version] = (current if same else copied(buffer)), {i: changed[i] for i in blocks}
        update = None
        if whole.update is not None:
            update = ChunkUpdate(self.spec, chunk)
            numbers = {(p.block, p.number): n for n, p in enumerate(old.places)}
            for number, place in enumerate(chunk.places):
                state = whole.update.optimizer.state(numbers[place.block, place.number])
                update.optimizer.load(number, {name: tensor.clone() for name, tensor in state.items()})
        return Moved(Shelf(chunk, current, {i: whole.shelf.changed[i] for i in blocks}, kept, []), update)


def _state_frame(block: int, piece: int, name: str, tensor: torch.Tensor) -> CopyFrame:
    return CopyFrame(block, piece, name, DTYPE_NAMES[tensor.dtype], tensor.numel(), tensor.dim() == 0)
