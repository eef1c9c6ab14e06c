"""Sums of slots over torch tensors, and the updates that are computed from them before their commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import torch

from paceline.blocks.chunks import LentFrame
from paceline.blocks.early_update import EarlyUpdates
from paceline.blocks.sums import BlockSum, Sum, SumMemory, Term
from paceline.blocks.tensors import DTYPES, piece_of, tensor_of
from paceline.blocks.threads import Scratch, Threads
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.messages import BlockFrame, SumMeta
from paceline.server.held_blocks import HeldBlocks
from paceline.server.shared_sums import SharedSum, SharedSumMemory
from paceline.telemetry import tracing
from paceline.transport.base import Memory
from paceline.types import INIT_STEP, BlockSpec, Fence, Hyper, Kind


class DenseSums:
    """`Sums` of the core over torch tensors. Sums for backups are in `memory`, which servers on this host read."""

    def __init__(self, held: HeldBlocks, early: EarlyUpdates, memory: Memory, threads: Threads) -> None:
        self._held = held
        self._early = early
        self._memory = memory
        self._threads = threads
        self.reset()

    def reset(self) -> None:
        """Forget all sums: the store has opened other blocks."""
        self._sums: dict[SumKey, Sum] = {}
        self._memories: dict[int, SumMemory] = {}
        self._expected_slots = 1
        self._economical = False
        self.blocks_changed()

    def blocks_changed(self) -> None:
        """Follow a change of the blocks that the store holds."""
        blocks, known = self._held.blocks.values(), self._memories
        self._means = [b.index for b in blocks if b.kind == Kind.MEAN]
        self._memories = {b.index: known.get(b.index) or SumMemory(b.numel, DTYPES[b.dtype]) for b in blocks}

    def economise(self, yes: bool) -> None:
        """With `yes`, use as little memory as possible, while the copies of a checkpoint take memory."""
        self._economical = yes
        for memory in self._memories.values():
            memory.economise(yes)

    # ------------------------------------------------------------ early work

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Add gradients that are not sealed yet, where those of all earlier slots have arrived. This only saves time.

        Does nothing while a checkpoint is written: its copies take the memory that early sums would need.
        """
        if key.fence is not None or key.step == INIT_STEP or self._economical:
            return
        total = self._total(key)
        total.hint()
        with tracing.span("sum", step=key.step, slot=slot, early=True):
            blocks, memories = self._held.blocks, self._memories
            for index, (rev, payload) in payloads.items():
                block = blocks[index]
                if block.kind == Kind.PARAMETER:
                    term = Term(slot, fence, rev, weight, tensor_of(cast(memoryview, payload), block.dtype))
                    total.block(index, memories[index]).expect(term, total.slots)
        with tracing.span("ahead", step=key.step, slot=slot):
            self._update_early(key, total, self._expected_slots, payloads)

    def update_early(self, key: SumKey, hyper: Hyper) -> Sum | None:
        """Compute the next weights from the complete sum `key`; returns the sum, or None if it does not decide them."""
        total = self._sums.get(key)
        if total is None:
            return None
        with tracing.span("ahead", step=key.step):
            return total if self._update_early(key, total, total.slots, total.blocks, hyper) else None

    def _update_early(self, key: SumKey, total: Sum, slots: int, blocks: Iterable[int], hyper: Hyper = ()) -> bool:
        """Compute next weights if the sum alone decides them, and no checkpoint needs the memory; False if not."""
        held = self._held
        follows = key.fence is None and key.step != INIT_STEP and held.spec.clip_norm is None
        if not follows or self._economical:
            return False
        chunk_of, updates = held.versions.chunk_of, held.updates
        numbers = sorted({chunk_of[index] for index in blocks})
        self._early.make(total, slots, [(n, updates[n]) for n in numbers if n in updates], hyper)
        return True

    # ------------------------------------------------------------ slots

    def add(self, key: SumKey, attempt: SealedAttempt) -> None:
        """Add one slot. The additions of the slot that is expected to be the last one are left to the update."""
        weight, absent, payloads, slot, fence, revs = attempt
        total = self._total(key)
        with tracing.span("sum", step=key.step, slot=slot):
            total.begin_slot(weight)
            blocks, memories, presence = self._held.blocks, self._memories, total.presence
            clips = self._held.spec.clip_norm is not None
            late = 1 if total.slots >= self._expected_slots and not clips else 0
            if not absent:
                presence.note_whole(payloads)
            sums, is_initial = total.blocks, key.step == INIT_STEP
            for index, payload in payloads.items():
                block = blocks[index]
                value = tensor_of(payload, block.dtype)
                if absent:
                    presence.note(block, absent)
                if block.kind == Kind.PARAMETER and not is_initial:
                    term = Term(slot, fence, revs[index] if revs is not None else -1, weight, value)
                    (sums.get(index) or total.block(index, memories[index])).add(term, late)
                else:
                    self._add_value(key, total, block, absent, weight, value)
            if total.hinted and slot >= 0:
                for index, block_sum in total.blocks.items():
                    if index not in payloads:
                        block_sum.skip(slot)
            if key.step != INIT_STEP and weight != 0:
                # A slot that did not change a float buffer still counts with the value it started from.
                for index in self._means:
                    if index not in payloads:
                        total.accumulate(index, weight, self._held.value(index))

    def begin(self, key: SumKey) -> Sum:
        """A new sum `key`, which its caller fills: it has all slots."""
        self.drop(key)
        return self._total(key)

    def memory(self, index: int) -> SumMemory:
        """The memory for the sums of a block."""
        return self._memories[index]

    def _total(self, key: SumKey) -> Sum:
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = Sum()
        return total

    def _add_value(
        self, key: SumKey, total: Sum, block: BlockSpec, absent: frozenset[int], weight: float, value: torch.Tensor
    ) -> None:
        """Add the values of one block that are no gradients: initial weights, or buffers of the model."""
        if key.step == INIT_STEP:
            total.set_value(block.index, value)
        elif block.kind == Kind.LAST:
            last = total.values.get(block.index)
            if last is None:
                last = self._held.value(block.index).clone()
                total.set_value(block.index, last)
            for piece in block.pieces:
                if piece.tensor not in absent:
                    piece_of(last, piece).copy_(piece_of(value, piece))
        else:
            total.accumulate(block.index, weight, value)

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block, in double precision."""
        total = self._sums[key]
        if self._held.spec.clip_norm is None or key.step == INIT_STEP or not total.weight:
            return ()
        out = []
        for index, block_sum in sorted(total.blocks.items()):
            if not block_sum.empty:
                mean = block_sum.into(torch.empty(0)).double() / total.weight
                out.append((index, float(torch.dot(mean, mean))))
        return tuple(out)

    # ------------------------------------------------------------ ends of sums

    def take(self, key: SumKey) -> Sum:
        """Take out a sum to be applied; drop the unsealed gradients of its step."""
        total = self._sums.pop(key)
        if key.fence is not None:
            self.drop(SumKey(key.step, None))
        if key.step != INIT_STEP:
            self._expected_slots = max(1, total.slots)
        return total

    def drop(self, key: SumKey) -> None:
        """Forget a sum that will never be applied."""
        total = self._sums.pop(key, None)
        if total is not None:
            self._early.drop()
            total.close()

    # ------------------------------------------------------------ from and to other servers

    def export(
        self, key: SumKey, blocks: Collection[int]
    ) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[LentFrame]]:
        """The complete sum of `blocks`, in memory that servers on this host can read. The sum does not change.

        `apply` computes the same bits here as `install` and `apply` do on another server.
        """
        total = self._sums[key]
        chosen = sorted(blocks)
        specs = self._held.blocks
        with tracing.span("export", step=key.step, blocks=len(chosen)):
            gradients = [i for i in chosen if i in total.blocks and not total.blocks[i].empty]
            values = [i for i in chosen if i in total.values and (i in total.presence.touched or key.step == INIT_STEP)]
            made = self._gather(total, gradients)
            for index in values:
                memory = self._shared(index)
                made[index] = memory.find(total.share(index, memory))
        frames = tuple(BlockFrame(i, specs[i].dtype, specs[i].numel) for i in sorted(made))
        meta = total.meta([specs[i] for i in chosen])
        return meta, frames, [LentFrame(made[f.block].frame, made[f.block]) for f in frames]

    def _gather(self, total: Sum, blocks: Sequence[int]) -> dict[int, SharedSum]:
        """Move the complete sums of `blocks` to shared memory."""
        jobs = [(total.blocks[index], self._shared(index)) for index in blocks]
        for block_sum, memory in jobs:
            if block_sum.wants(memory):
                memory.reserve()

        def work(_: Scratch, job: tuple[BlockSum, SharedSumMemory]) -> None:
            job[0].gather(job[1])

        self._threads.run(work, jobs, sum(self._held.blocks[i].nbytes for i in blocks))
        return {i: memory.find(made.gather(memory)) for i, (made, memory) in zip(blocks, jobs, strict=True)}

    def _shared(self, index: int) -> SharedSumMemory:
        """The memory for the sums of a block, which is shared memory from its first export on."""
        memory = self._memories[index]
        if not isinstance(memory, SharedSumMemory):
            block = self._held.blocks[index]
            memory = self._memories[index] = SharedSumMemory(block.numel, DTYPES[block.dtype], self._memory)
            memory.economise(self._economical)
        return memory

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Add blocks of a sum that the primary exported. The payload is the sender's memory until `apply` or `drop`."""
        total = self._total(key)
        total.learn(meta)
        for frame, content in zip(frames, payload, strict=True):
            block = self._held.blocks[frame.block]
            value = tensor_of(cast(memoryview, content), block.dtype)
            if block.kind == Kind.PARAMETER and key.step != INIT_STEP:
                total.install(frame.block, self._memories[frame.block], value)
            else:
                total.set_value(frame.block, value)
