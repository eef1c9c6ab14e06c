"""Dense blocks in memory: sums of slots, readable versions, the optimizer. Arithmetic of rule 11, nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.chunk_update import ChunkUpdate, Frozen
from paceline.blocks.chunks import Buffer, Part
from paceline.blocks.early_update import Ahead
from paceline.blocks.sums import BlockSum, Rooms, Sum, Term
from paceline.blocks.tensors import DTYPES, piece_of, tensor_of
from paceline.blocks.threads import Scratch, Threads
from paceline.checkpoint.manifest import read_manifest
from paceline.checkpoint.shards import read_shards
from paceline.checkpoint.storage import Storage
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.errors import CheckpointError
from paceline.messages import BlockFrame, CopyFrame, SumMeta
from paceline.server.held_blocks import Holdings, Moved
from paceline.server.shared_sums import Room, SharedRooms
from paceline.telemetry import tracing
from paceline.transport.base import Memory
from paceline.transport.memory.arena import Arena
from paceline.types import INIT_STEP, BlockSpec, Commit, Fence, Kind, ModelSpec

_Job = tuple[ChunkUpdate, list[bool] | None, Buffer, Buffer]


class DenseStore:
    """`BlockStore` over torch tensors. Checkpoints are read from `storage`; `frozen` is what waits to be written.

    Memory, in multiples of the weights: the current version and the next one (2), the optimizer's state and the next
    one (2 for SGD with momentum), and one sum if slots are added before the step is complete (two where more than two
    slots are added early). A version that is kept, or still read while the next but one is written, is one more; so is
    a checkpoint that is being written, with its optimizer state. Gradients are not copied: they are borrowed from their
    senders, at most `hold` of each block, and count here only if they came over a network. Where other servers have
    copies, each sum is made in memory that they can read: it is one more, and two while they are a step behind.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        memory: Memory | None = None,
        threads: int = 1,
        crew: Threads | None = None,
    ) -> None:
        """Versions live in `memory`. Large updates are shared out to `crew`, or to `threads` of its own."""
        self._storage = storage
        self._memory = memory if memory is not None else Arena(share=False)
        self._crew = crew if crew is not None else Threads(threads)
        self._forget()

    def _forget(self) -> None:
        self._held: Holdings | None = None
        self._means: list[int] = []
        self._sums: dict[SumKey, Sum] = {}
        self._rooms: dict[int, Rooms] = {}
        self._expected = 1
        self._complete: SumKey | None = None
        self._ahead: Ahead | None = None
        self.frozen: Frozen | None = None

    @property
    def version(self) -> int:
        """The current version, -1 before the first."""
        return -1 if self._held is None else self._held.versions.number

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Make room for `blocks`, and for nothing else."""
        self._forget()
        self._held = Holdings(spec, blocks, self._memory)
        self._ahead = Ahead(self._held.versions, self._crew)
        self._became(self._held)

    def _became(self, held: Holdings) -> None:
        """Other blocks are held than before."""
        blocks = held.blocks.values()
        self._means = [b.index for b in blocks if b.kind == Kind.MEAN]
        self._rooms = {b.index: self._rooms.get(b.index) or Rooms(b.numel, DTYPES[b.dtype]) for b in blocks}

    @property
    def held(self) -> Holdings:
        """What is open."""
        assert self._held is not None, "no blocks are open"
        return self._held

    def close(self) -> None:
        """End the threads."""
        self._crew.close()

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
            blocks = self.held.blocks
            for index, (rev, payload) in payloads.items():
                block = blocks[index]
                if block.kind == Kind.PARAMETER:
                    term = Term(slot, fence, rev, weight, tensor_of(cast(memoryview, payload), block.dtype))
                    self._sum(total, index).expect(term, total.slots)
        with tracing.span("ahead", step=key.step, slot=slot):
            self._go_ahead(key, total, self._expected, payloads)

    def work_ahead(self) -> None:
        """Make the next weights of a step that was ready a moment ago. Changes nothing but the time of its commit."""
        key, self._complete = self._complete, None
        total = None if key is None else self._sums.get(key)
        if key is not None and total is not None:
            with tracing.span("ahead", step=key.step):
                self._go_ahead(key, total, total.slots, total.blocks)

    def _go_ahead(self, key: SumKey, total: Sum, slots: int, blocks: Iterable[int]) -> None:
        """Only where the next version follows from the sum, and not while a checkpoint needs the memory."""
        held, ahead = self.held, self._ahead
        follows = key.fence is None and key.step != INIT_STEP and held.spec.clip_norm is None
        if ahead is not None and follows and self.frozen is None:
            numbers = sorted({held.versions.home[index] for index in blocks})
            ahead.make(total, slots, [(n, held.updates[n]) for n in numbers if n in held.updates])

    @property
    def sums(self) -> DenseStore:
        """All four parts are this object."""
        return self

    versions = copies = checkpoints = sums

    def expect_commit(self, key: SumKey) -> None:
        """`work_ahead` may make the next weights of this sum, which is complete."""
        self._complete = key

    def add(self, key: SumKey, attempt: SealedAttempt) -> None:
        """Add one slot. What is expected to be the last one of a step is left to `apply`."""
        weight, absent, payloads, slot, fence, revs = attempt
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = Sum()
        with tracing.span("sum", step=key.step, slot=slot):
            total.weight += weight
            total.slots += 1
            blocks, clips = self.held.blocks, self.held.spec.clip_norm is not None
            late = 1 if total.slots >= self._expected and not clips else 0
            for index, payload in payloads.items():
                block = blocks[index]
                value = tensor_of(cast(memoryview, payload), block.dtype)
                total.note(block, absent)
                if block.kind == Kind.PARAMETER and key.step != INIT_STEP:
                    term = Term(slot, fence, revs[index] if revs is not None else -1, weight, value)
                    held = self._sum(total, index)
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
                        self._accumulate(total, index, weight, self.held.value(index))

    def _sum(self, total: Sum, index: int) -> BlockSum:
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
                last = total.buffers[block.index] = self.held.value(block.index).clone()
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
        if self.held.spec.clip_norm is None or key.step == INIT_STEP or not total.weight:
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
            self._discard_ahead()
            total.close()

    def _discard_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.drop()

    # ------------------------------------------------------------ sums of others, and for others

    def export(self, key: SumKey, blocks: Collection[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[Part]]:
        """The sum, which is complete, of these blocks. It is in memory that peers of this host can read, and stays.

        What `apply` makes of it here is what `install` and `apply` make of it elsewhere, bit by bit.
        """
        total = self._sums[key]
        chosen = sorted(blocks)
        specs = self.held.blocks
        with tracing.span("export", step=key.step, blocks=len(chosen)):
            gradients = [i for i in chosen if i in total.blocks and not total.blocks[i].empty]
            values = [i for i in chosen if i in total.buffers and (i in total.touched or key.step == INIT_STEP)]
            made = self._gather(total, gradients)
            for index in values:
                rooms = self._shared_rooms(index)
                if index not in total.shared:
                    total.shared[index] = rooms, rooms.take().copy_(total.buffers[index])
                made[index] = rooms.find(total.shared[index][1])
        frames = tuple(BlockFrame(i, specs[i].dtype, specs[i].numel) for i in sorted(made))
        meta = total.meta([specs[i] for i in chosen])
        return meta, frames, [Part(made[f.block].frame, made[f.block]) for f in frames]

    def _gather(self, total: Sum, blocks: Sequence[int]) -> dict[int, Room]:
        """The sums of these blocks, finished."""
        jobs = [(total.blocks[index], self._shared_rooms(index)) for index in blocks]
        for held, rooms in jobs:
            if held.wants(rooms):
                rooms.reserve()

        def work(_: Scratch, job: tuple[BlockSum, SharedRooms]) -> None:
            job[0].gather(job[1])

        self._crew.run(work, jobs, sum(self.held.blocks[i].nbytes for i in blocks))
        return {i: rooms.find(held.gather(rooms)) for i, (held, rooms) in zip(blocks, jobs, strict=True)}

    def _shared_rooms(self, index: int) -> SharedRooms:
        rooms = self._rooms[index]
        if not isinstance(rooms, SharedRooms):
            block = self.held.blocks[index]
            rooms = self._rooms[index] = SharedRooms(block.numel, DTYPES[block.dtype], self._memory)
            rooms.frugal(self.frozen is not None)
        return rooms

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Blocks of a sum as another store exported them; the frames are its sender's until `apply` or `drop`."""
        total = self._sums.setdefault(key, Sum())
        total.learn(meta)
        for frame, content in zip(frames, payload, strict=True):
            block = self.held.blocks[frame.block]
            value = tensor_of(cast(memoryview, content), block.dtype)
            if block.kind == Kind.PARAMETER and key.step != INIT_STEP:
                total.blocks[frame.block] = held = BlockSum(self._rooms[frame.block])
                held.seal(Term(0, None, -1, 1.0, value))
            else:
                total.buffers[frame.block] = value

    # ------------------------------------------------------------ versions

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Make the next version beside the readable one, then switch."""
        total = self._sums.pop(key)
        if key.fence is not None:
            self.drop(SumKey(key.step, None))  # of which nothing was sealed
        self.held.versions.number = commit.version
        if key.step == INIT_STEP:
            for index, value in total.buffers.items():
                self.held.value(index).copy_(value)
            total.close()
            return
        self._expected = max(1, total.slots)
        with tracing.span("apply", step=key.step, version=commit.version):
            if total.weight:
                self._update(total, commit)
                for index in total.touched.intersection(total.buffers):
                    self._write_buffer(index, total)
        total.close()

    def _update(self, total: Sum, commit: Commit) -> None:
        versions, ahead = self.held.versions, self._ahead
        assert ahead is not None
        jobs: list[_Job] = []
        numbers: list[int] = []
        nbytes = 0
        for number, update in self.held.updates.items():
            present = update.presence(total)
            made = ahead.take(number, update, total, commit) if present is None else None
            if made is not None:
                versions.switch(number, made, update.chunk.blocks)
            elif present is None or any(present):
                jobs.append((update, present, versions.current[number], versions.fresh(number)))
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
            versions.switch(number, new, changed)
        ahead.applied(commit.hyper)

    def _write_buffer(self, index: int, total: Sum) -> None:
        """A buffer that no slot changed keeps its bits: the rounded mean of equal values need not be that value."""
        versions, block, value = self.held.versions, self.held.blocks[index], total.buffers[index]
        number = versions.home[index]
        if block.kind == Kind.MEAN and total.weight != 1.0:
            value = value / total.weight  # not in place: another server may read it, or have lent it
        new = versions.fresh(number)
        new.tensor.copy_(versions.current[number].tensor)
        flat = versions.chunks[number].of(new.tensor, index)
        for piece in block.pieces:
            if block.kind == Kind.LAST or total.has(index, piece.tensor):
                piece_of(flat, piece).copy_(piece_of(value, piece))
        versions.switch(number, new, (index,))

    # ------------------------------------------------------------ checkpoints

    def save(self, version: int) -> None:
        """Freeze the current version. Nothing is copied here: values are lent, and updates leave frozen state alone."""
        assert version == self.version
        self.frozen = Frozen(version, self.snapshot())
        self._economise(True)
        self.held.freeze(self.frozen)

    def thaw(self) -> None:
        """The frozen version is written, or will never be. Its memory is used again once its reader is done."""
        self.frozen = None
        self._economise(False)

    def _economise(self, yes: bool) -> None:
        for rooms in self._rooms.values():
            rooms.frugal(yes)

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, by reference: good until the next `apply`."""
        return self.held.snapshot()

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the blocks that were just opened, one file of the checkpoint after the other."""
        held = self.held
        if self._storage is None:
            raise CheckpointError(folder, "this server was started without a place for checkpoints")
        manifest = read_manifest(self._storage, folder)
        if manifest.position.version != version:
            raise CheckpointError(folder, f"it holds version {manifest.position.version}, not {version}")
        theirs, mine = manifest.model, held.spec
        if (theirs.tensors, theirs.optimizer.name) != (mine.tensors, mine.optimizer.name):
            raise CheckpointError(folder, "it is of another model or another optimizer")
        held.fill(version, read_shards(self._storage, folder, manifest, held.blocks))
        return {index: bytes.fromhex(manifest.chains[index]) for index in held.blocks}

    # ------------------------------------------------------------ copies

    def copy_out(self, blocks: Collection[int]) -> tuple[tuple[CopyFrame, ...], Sequence[Part]]:
        """These blocks at the current version with their optimizer state, lent for as long as the parts are held."""
        return self.held.copy_out(blocks)

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Some of the blocks' values and state at `version`."""
        self.held.copy_in(version, frames, payload)

    def take(self, blocks: Collection[int]) -> list[Moved]:
        """Give up these blocks, with everything, to another store of this process. No sum may be under way."""
        self._discard_ahead()
        taken = self.held.take(blocks)
        self._became(self.held)
        return taken

    def put(self, version: int, taken: object) -> None:
        """Hold what another store gave up, which is of `version`."""
        self._discard_ahead()
        self.held.put(version, cast(Sequence[Moved], taken))
        self._became(self.held)

    # ------------------------------------------------------------ readers

    def keep(self, version: int) -> None:
        """Keep the current version readable. Without blocks there is none."""
        if self.held.blocks:
            self.held.versions.keep(version)

    def release(self, version: int) -> None:
        """Give up a kept version."""
        if self._held is not None:
            self._held.versions.release(version)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """Frames and parts of the blocks that changed after `have`."""
        return self.held.versions.read(version, have, blocks)
