"""Dense blocks in memory: sums of slots, readable versions, the optimizer. The arithmetic of rule 11."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.chunks import Buffer
from paceline.blocks.early_update import Changed, EarlyUpdates
from paceline.blocks.sums import Sum
from paceline.blocks.tensors import piece_of
from paceline.blocks.threads import Scratch, Threads
from paceline.blocks.versions import Versions
from paceline.checkpoint.storage import Storage
from paceline.core.server.block_store import SumKey
from paceline.server.dense_checkpoints import DenseCheckpoints
from paceline.server.dense_copies import DenseCopies
from paceline.server.dense_sums import DenseSums
from paceline.server.group_sums import DenseGroupSums
from paceline.server.held_blocks import HeldBlocks
from paceline.telemetry import tracing
from paceline.transport.base import Memory
from paceline.transport.memory.arena import Arena
from paceline.types import INIT_STEP, BlockSpec, Commit, Hyper, Kind, ModelSpec

_Job = tuple[ChunkUpdate, list[bool] | None, Buffer, Buffer]


class DenseStore:
    """`BlockStore` over torch tensors.

    Memory, in multiples of the size of the weights:

    - 2 for the current version and the next one
    - 2 for SGD with momentum: the optimizer's state and the next state
    - 1 for a sum, if slots are added before the step is complete; 2 if more than two slots are added early
    - 1 for each version that is kept, or still read while the next but one is written
    - 1 for a checkpoint that is being written, and its optimizer state
    - 1 for the shared sum, if other servers have copies; 2 while these servers are a step behind

    Gradients are not copied. They are borrowed from their senders, at most `hold` of each block, and take memory here
    only if they came over a network.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        memory: Memory | None = None,
        threads: Threads | None = None,
        ordered: bool = False,
    ) -> None:
        """Checkpoints are read from `storage`, versions are in `memory`, and `threads` share large updates.

        With `ordered`, a group of members adds slots in slot order.
        """
        memory = memory if memory is not None else Arena(share=False)
        self._threads = threads if threads is not None else Threads()
        self._held = HeldBlocks(memory)
        self._early = EarlyUpdates(self._held.versions, self._threads)
        self.sums = DenseSums(self._held, self._early, memory, self._threads)
        self.group_sums = DenseGroupSums(self._held, self.sums, ordered=ordered)
        self.copies = DenseCopies(self._held, self.sums, self._early)
        self.checkpoints = DenseCheckpoints(self._held, self.sums, storage)

    @property
    def versions(self) -> Versions:
        """Readable versions."""
        return self._held.versions

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Allocate `blocks`, and forget all others."""
        self._held.open(spec, blocks)
        self._early.reset()
        self.sums.reset()
        self.group_sums.reset()
        self.checkpoints.reset()

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, not copied: valid until the next `apply`."""
        return self._held.snapshot()

    # ------------------------------------------------------------ commits

    def update_early(self, key: SumKey, hyper: Hyper) -> bool:
        """Compute the next version beside the readable one; True if all of it can be read before its commit."""
        total = self.sums.update_early(key, hyper)
        if total is None or not hyper or not total.weight:
            return False
        made: dict[int, tuple[Buffer, Collection[int]]] = {}
        for number, update in self._held.updates.items():
            present = total.presence.of_pieces(update.chunk)
            if present is not None and not any(present):
                continue
            new = self._early.find(number, update, total, hyper) if present is None else None
            if new is None:
                return False
            made[number] = new, update.chunk.blocks
        buffers = self._write_buffers(total)
        self._early.keep_buffers(total, buffers)
        self._held.versions.offer_ahead({**made, **buffers})
        return True

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Compute the next version in other memory than the readable one, then switch to it."""
        total = self.sums.take(key)
        self._held.versions.begin(commit.version)
        if key.step == INIT_STEP:
            for index, value in total.values.items():
                self._held.value(index).copy_(value)
            total.close()
            return
        with tracing.span("apply", step=key.step, version=commit.version):
            if total.weight:
                buffers = self._early.take_buffers(total)
                self._update(total, commit)
                for number, (new, changed) in (self._write_buffers(total) if buffers is None else buffers).items():
                    self._held.versions.switch(number, new, changed)
        total.close()

    def _update(self, total: Sum, commit: Commit) -> None:
        """Update every chunk of parameters that has a gradient; use its early update if there is one."""
        versions, early = self._held.versions, self._early
        jobs: list[_Job] = []
        numbers: list[int] = []
        nbytes = 0
        for number, update in self._held.updates.items():
            present = total.presence.of_pieces(update.chunk)
            made = early.take(number, update, total, commit) if present is None else None
            if made is not None:
                versions.switch(number, made, update.chunk.blocks)
            elif present is None or any(present):
                jobs.append((update, present, versions.current[number], versions.fresh(number)))
                numbers.append(number)
                nbytes += update.chunk.nbytes

        def work(scratch: Scratch, job: _Job) -> None:
            update, present, old, new = job
            update.run(total, commit, present, old.tensor, new.tensor, scratch)

        self._threads.run(work, jobs, nbytes)
        for number, (update, present, _, new) in zip(numbers, jobs, strict=True):
            changed = update.chunk.blocks
            if present is not None:
                changed = tuple({p.block for p, here in zip(update.chunk.pieces, present, strict=True) if here})
            versions.switch(number, new, changed)
        early.applied(commit.hyper)

    def _write_buffers(self, total: Sum) -> Changed:
        """Write the next version of the chunks of model buffers (`Kind.MEAN` and `Kind.LAST`) that have changed."""
        versions = self._held.versions
        made: dict[int, tuple[Buffer, list[int]]] = {}
        for index in total.presence.touched.intersection(total.values):
            number = versions.chunk_of[index]
            if number not in made:
                new = versions.fresh(number)
                new.tensor.copy_(versions.current[number].tensor)
                made[number] = new, []
            new, changed = made[number]
            changed.append(index)
            self._write_buffer(index, total, versions.chunks[number].of(new.tensor, index))
        return made

    def _write_buffer(self, index: int, total: Sum, flat: torch.Tensor) -> None:
        """Write the next version of a block of model buffers to `flat`.

        A buffer that no slot changed keeps its bits: the rounded mean of equal values may differ from the value.
        """
        block, value = self._held.blocks[index], total.values[index]
        if block.kind == Kind.MEAN and total.weight != 1.0:
            value = value / total.weight  # not in place: another server may read this memory, or own it
        for piece in block.pieces:
            if block.kind == Kind.LAST or total.presence.has(index, piece.tensor):
                piece_of(flat, piece).copy_(piece_of(value, piece))
