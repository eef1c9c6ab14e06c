"""Dense blocks in memory: sums of slots, readable versions, the optimizer. Arithmetic of rule 11, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch

from paceline import tracing
from paceline.blocks import DTYPES, piece_of, tensor_of
from paceline.checkpoint.manifest import read_manifest
from paceline.checkpoint.shards import BlockState, read_shards
from paceline.checkpoint.storage import Storage
from paceline.core.store import SumKey
from paceline.errors import CheckpointError
from paceline.messages import BlockFrame
from paceline.server.ahead import Ahead
from paceline.server.chunks import Buffer, Chunk, in_chunks
from paceline.server.crew import Crew, Scratch
from paceline.server.sums import BlockSum, Rooms, Sum, Term
from paceline.server.updating import ChunkUpdate, Frozen
from paceline.server.versions import Versions
from paceline.transport.base import Memory
from paceline.transport.memory import Arena
from paceline.types import INIT_STEP, BlockSpec, Commit, Fence, Kind, ModelSpec

_Job = tuple[ChunkUpdate, list[bool] | None, Buffer, Buffer]


class DenseStore:
    """`BlockStore` over torch tensors. Checkpoints are read from `storage`; `frozen` is what waits to be written.

    Memory, in multiples of the weights: the current version and the next one (2), the optimizer's state and the next
    one (2 for SGD with momentum), and one sum if slots are added before the step is complete (two where more than two slots are added
    early). A version that is kept, or still read while the next but one is written, is one more; so is a checkpoint
    that is being written, with its optimizer state. Gradients are not copied: they are borrowed from their senders, at
    most `hold` of each block, and count here only if they came over a network.
    """

    def __init__(self, storage: Storage | None = None, *, memory: Memory | None = None, threads: int = 1) -> None:
        """Versions live in `memory`. Large updates are shared out to `threads`."""
        self._storage = storage
        self._memory = memory if memory is not None else Arena(share=False)
        self._crew = Crew(threads)
        self._forget()

    def _forget(self) -> None:
        self._spec: ModelSpec | None = None
        self._blocks: dict[int, BlockSpec] = {}
        self._versions = Versions((), (), self._memory)
        self._homes: dict[int, int] = {}
        self._updates: list[tuple[int, ChunkUpdate]] = []
        self._means: list[int] = []
        self._sums: dict[SumKey, Sum] = {}
        self._rooms: dict[int, Rooms] = {}
        self._expected = 1
        self._complete: SumKey | None = None
        self._ahead = Ahead(self._versions, self._crew)
        self.frozen: Frozen | None = None

    @property
    def version(self) -> int:
        """The current version, -1 before the first."""
        return self._versions.number

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Make room for `blocks`, and for nothing else."""
        self._forget()
        self._spec = spec
        self._blocks = {b.index: b for b in blocks}
        chunks = in_chunks(blocks)
        self._versions = Versions(chunks, blocks, self._memory)
        self._ahead = Ahead(self._versions, self._crew)
        self._homes = {index: number for number, chunk in enumerate(chunks) for index in chunk.blocks}
        self._updates = [(n, ChunkUpdate(spec, c)) for n, c in enumerate(chunks) if c.kind == Kind.PARAMETER]
        self._means = [b.index for b in blocks if b.kind == Kind.MEAN]
        self._rooms = {b.index: Rooms(b.numel, DTYPES[b.dtype]) for b in blocks}

    def close(self) -> None:
        """End the threads."""
        self._crew.close()

    def _value(self, index: int) -> torch.Tensor:
        """A block of the current version."""
        number = self._homes[index]
        return self._chunk(number).of(self._versions.current[number].tensor, index)

    def _chunk(self, number: int) -> Chunk:
        return self._versions.chunks[number]

    # ------------------------------------------------------------ sums

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Add gradients that may be sealed later, where all slots before them are there. Changes nothing but the time.

        Not while a checkpoint is written: then its copies take the memory that the sums would.
        """
        if key.fence is not None or key.step == INIT_STEP or self.frozen is not None:
            return
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = Sum()
        total.hinted = True
        with tracing.span("sum", step=key.step, slot=slot, early=True):
            for index, (rev, payload) in payloads.items():
                block = self._blocks[index]
                if block.kind == Kind.PARAMETER:
                    term = Term(slot, fence, rev, weight, tensor_of(cast(memoryview, payload), block.dtype))
                    self._held(total, index).expect(term, total.slots)
        if self._can_go_ahead(key):
            homes = {self._homes[index] for index in payloads}
            with tracing.span("ahead", step=key.step, slot=slot):
                self._ahead.make(total, self._expected, [u for u in self._updates if u[0] in homes])

    def work_ahead(self) -> None:
        """Make the next weights of a step that was ready a moment ago. Changes nothing but the time of its commit."""
        key, self._complete = self._complete, None
        if key is not None and key in self._sums and self._can_go_ahead(key):
            total = self._sums[key]
            with tracing.span("ahead", step=key.step):
                self._ahead.make(total, total.slots, self._updates)

    def _can_go_ahead(self, key: SumKey) -> bool:
        """Only where the next version follows from the sum, and not while a checkpoint needs the memory."""
        clips = self._spec is None or self._spec.clip_norm is not None
        return key.fence is None and key.step != INIT_STEP and self.frozen is None and not clips

    def add(
        self,
        key: SumKey,
        weight: float,
        absent: frozenset[int],
        payloads: Mapping[int, object],
        *,
        slot: int = -1,
        fence: Fence | None = None,
        revs: Mapping[int, int] | None = None,
    ) -> None:
        """Add one slot. What is expected to be the last one of a step is left to `apply`."""
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = Sum()
        with tracing.span("sum", step=key.step, slot=slot):
            total.weight += weight
            total.slots += 1
            clips = self._spec is not None and self._spec.clip_norm is not None
            late = 1 if total.slots >= self._expected and not clips else 0
            for index, payload in payloads.items():
                block = self._blocks[index]
                value = tensor_of(cast(memoryview, payload), block.dtype)
                total.note(block, absent)
                if block.kind == Kind.PARAMETER and key.step != INIT_STEP:
                    term = Term(slot, fence, revs[index] if revs is not None else -1, weight, value)
                    held = self._held(total, index)
                    held.seal(term)
                    if len(held.terms) > late:
                        held.fold(len(held.terms) - late)
                else:
                    self._take(key, total, block, absent, weight, value)
            if total.hinted and slot >= 0:
                for index, held in total.blocks.items():
                    if index not in payloads:
                        held.skip(slot)
            if key.step != INIT_STEP and weight != 0:
                # A slot that did not change a float buffer still counts with the value it started from.
                for index in self._means:
                    if index not in payloads:
                        self._accumulate(total, index, weight, self._value(index))

    def _held(self, total: Sum, index: int) -> BlockSum:
        held = total.blocks.get(index)
        if held is None:
            held = total.blocks[index] = BlockSum(self._rooms[index])
        return held

    def _take(
        self, key: SumKey, total: Sum, block: BlockSpec, absent: frozenset[int], weight: float, value: torch.Tensor
    ) -> None:
        """Values that are no gradients: the initial ones, and buffers."""
        if key.step == INIT_STEP:
            total.buffers[block.index] = value
        elif block.kind == Kind.LAST:
            last = total.buffers.get(block.index)
            if last is None:
                last = total.buffers[block.index] = self._value(block.index).clone()
            for piece in block.pieces:
                if piece.tensor not in absent:
                    piece_of(last, piece).copy_(piece_of(value, piece))
        else:
            self._accumulate(total, block.index, weight, value)

    def _accumulate(self, total: Sum, index: int, weight: float, value: torch.Tensor) -> None:
        acc = total.buffers.get(index)
        if acc is None:
            total.buffers[index] = value.clone() if weight == 1.0 else value * weight
        else:
            acc.add_(value if weight == 1.0 else value * weight)

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block, in double precision."""
        total = self._sums[key]
        self._complete = key
        if self._spec is None or self._spec.clip_norm is None or key.step == INIT_STEP or not total.weight:
            return ()
        out = []
        for index, held in sorted(total.blocks.items()):
            if not held.empty:
                mean = held.into(torch.empty(0)).double() / total.weight
                out.append((index, float(torch.dot(mean, mean))))
        return tuple(out)

    def drop(self, key: SumKey) -> None:
        """Forget a sum."""
        total = self._sums.pop(key, None)
        if total is not None:
            self._ahead.drop()
            total.close()

    # ------------------------------------------------------------ versions

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Make the next version beside the readable one, then switch."""
        total = self._sums.pop(key)
        if key.fence is not None:
            self.drop(SumKey(key.step, None))  # of which nothing was sealed
        self._versions.number = commit.version
        if key.step == INIT_STEP:
            for index, value in total.buffers.items():
                self._value(index).copy_(value)
            return
        self._expected = max(1, total.slots)
        with tracing.span("apply", step=key.step, version=commit.version):
            if total.weight:
                self._update(total, commit)
                for index in total.touched.intersection(total.buffers):
                    self._write_buffer(index, total)
        total.close()

    def _update(self, total: Sum, commit: Commit) -> None:
        jobs: list[_Job] = []
        numbers: list[int] = []
        nbytes = 0
        for number, update in self._updates:
            present = update.presence(total)
            made = self._ahead.take(number, update, total, commit) if present is None else None
            if made is not None:
                self._versions.switch(number, made, update.chunk.blocks)
            elif present is None or any(present):
                jobs.append((update, present, self._versions.current[number], self._versions.fresh(number)))
                numbers.append(number)
                nbytes += update.chunk.nbytes

        def work(scratch: Scratch, job: _Job) -> None:
            update, present, old, new = job
            update.run(total, commit, present, old.tensor, new.tensor, scratch)

        self._crew.run(work, jobs, nbytes)
        for number, (update, present, _, new) in zip(numbers, jobs, strict=True):
            changed = update.chunk.blocks
            if present is not None:
                changed = tuple({p.block for p, here in zip(update.chunk.places, present, strict=True) if here})
            self._versions.switch(number, new, changed)
        self._ahead.applied(commit.hyper)

    def _write_buffer(self, index: int, total: Sum) -> None:
        """A buffer that no slot changed keeps its bits: the rounded mean of equal values need not be that value."""
        number, block, value = self._homes[index], self._blocks[index], total.buffers[index]
        if block.kind == Kind.MEAN and total.weight != 1.0:
            value.div_(total.weight)
        new = self._versions.fresh(number)
        new.tensor.copy_(self._versions.current[number].tensor)
        flat = self._chunk(number).of(new.tensor, index)
        for piece in block.pieces:
            if block.kind == Kind.LAST or total.has(index, piece.tensor):
                piece_of(flat, piece).copy_(piece_of(value, piece))
        self._versions.switch(number, new, (index,))

    # ------------------------------------------------------------ checkpoints

    def save(self, version: int) -> None:
        """Freeze the current version. Nothing is copied here: values are lent, and updates leave frozen state alone."""
        assert version == self.version
        self.frozen = Frozen(version, self.snapshot())
        self._economise(True)
        for buffer in self._versions.current:
            buffer.lend(self.frozen)
        for _, update in self._updates:
            update.freeze(self.frozen)

    def thaw(self) -> None:
        """The frozen version is written, or will never be. Its memory is used again once its reader is done."""
        self.frozen = None
        self._economise(False)

    def _economise(self, yes: bool) -> None:
        for rooms in self._rooms.values():
            rooms.frugal(yes)

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, by reference: good until the next `apply`."""
        taken = {index: BlockState(self._value(index)) for index in self._blocks}
        for _, update in self._updates:
            for number, place in enumerate(update.chunk.places):
                for name, tensor in update.optimizer.state(number).items():
                    taken[place.block].state[place.number, name] = tensor
        return taken

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the blocks that were just opened, one file of the checkpoint after the other."""
        assert self._spec is not None
        if self._storage is None:
            raise CheckpointError(folder, "this server was started without a place for checkpoints")
        manifest = read_manifest(self._storage, folder)
        if manifest.position.version != version:
            raise CheckpointError(folder, f"it holds version {manifest.position.version}, not {version}")
        theirs, mine = manifest.model, self._spec
        if (theirs.tensors, theirs.optimizer.name) != (mine.tensors, mine.optimizer.name):
            raise CheckpointError(folder, "it is of another model or another optimizer")
        self._fill(read_shards(self._storage, folder, manifest, self._blocks))
        self._versions.reset(version)
        return {index: bytes.fromhex(manifest.chains[index]) for index in self._blocks}

    def _fill(self, states: Iterator[tuple[int, BlockState]]) -> None:
        where = {(p.block, p.number): (u, n) for _, u in self._updates for n, p in enumerate(u.chunk.places)}
        for index, state in states:
            self._value(index).copy_(state.value)
            names: dict[int, dict[str, torch.Tensor]] = {}
            for (piece, name), tensor in state.state.items():
                names.setdefault(piece, {})[name] = tensor
            for piece, tensors in names.items():
                update, number = where[index, piece]
                update.optimizer.load(number, tensors)

    def keep(self, version: int) -> None:
        """Keep the current version readable."""
        self._versions.keep(version)

    def release(self, version: int) -> None:
        """Give up a kept version."""
        self._versions.release(version)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """Frames and parts of the blocks that changed after `have`."""
        return self._versions.read(version, have, blocks)
