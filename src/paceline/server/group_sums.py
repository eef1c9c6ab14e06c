"""Sums that a group of members makes together, over torch tensors. Rules 11, 17 and 18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from paceline.blocks.group_parts import GroupLayout, GroupPart, SlotRow
from paceline.blocks.sums import Sum
from paceline.blocks.tensors import bytes_of, piece_of, tensor_of
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_sums import DenseSums
from paceline.server.held_blocks import HeldBlocks
from paceline.telemetry import tracing
from paceline.types import INIT_STEP, Fence, Kind


class DenseGroupSums:
    """`GroupSums` of the core over torch tensors. With `ordered`, slots are added in slot order, as on servers.

    The memory of a part is used again for the next step of the same size: its sum is applied or dropped by then. After
    a broken reduction it is not: the library may still write to it.
    """

    def __init__(self, held: HeldBlocks, sums: DenseSums, *, ordered: bool) -> None:
        self._held = held
        self._sums = sums
        self._ordered = ordered
        self._layouts: dict[tuple[int, bool], GroupLayout] = {}
        self._spare: dict[int, GroupPart] = {}

    def reset(self) -> None:
        """Forget all memory: the placement, or the blocks of the store, are others."""
        self._layouts.clear()
        self._spare.clear()

    def contribute(self, step: int, num_slots: int, attempts: Sequence[SealedAttempt]) -> GroupPart:
        """The part of this member in the sum of `step`."""
        with tracing.span("contribute", step=step, slots=len(attempts)):
            layout = self._layout(num_slots, initial=step == INIT_STEP)
            part = self._spare.pop(id(layout), None)
            if part is None:
                part = GroupPart(layout)
            part.header.zero_()
            for attempt in attempts:
                assert attempt.fence is not None
                blocks = tuple(sorted(attempt.payloads))
                row = SlotRow(attempt.fence, attempt.weight, blocks, attempt.absent)
                layout.write_row(part, attempt.slot, row)
            if part.slots:
                self._copy(layout, part, attempts)
            else:
                self._add(layout, part, attempts)
            return part

    def _layout(self, num_slots: int, *, initial: bool) -> GroupLayout:
        layout = self._layouts.get((num_slots, initial))
        if layout is None:
            held = self._held
            tensors = len(held.spec.tensors)
            layout = GroupLayout(held.blocks.values(), tensors, num_slots, initial=initial, ordered=self._ordered)
            self._layouts[num_slots, initial] = layout
        return layout

    def _copy(self, layout: GroupLayout, part: GroupPart, attempts: Sequence[SealedAttempt]) -> None:
        """Copy each slot of this member as it is."""
        for attempt in attempts:
            views = part.slot_values(layout, attempt.slot)
            for index, value in self._values(attempt).items():
                views[index].copy_(value)

    def _add(self, layout: GroupLayout, part: GroupPart, attempts: Sequence[SealedAttempt]) -> None:
        """Add the slots of this member in slot order; blocks that none of them has are zero."""
        begun: set[int] = set()
        last = part.last_values(layout)
        for attempt in attempts:
            values = self._values(attempt)
            if attempt.weight:
                # A slot that did not change a float buffer still counts with the value it started from.
                for blocks in layout.reduced.values():
                    for block in blocks:
                        if block.kind == Kind.MEAN and block.index not in values:
                            values[block.index] = self._held.value(block.index)
            for index, value in values.items():
                if index in last:
                    for piece in self._held.blocks[index].pieces:
                        if piece.tensor not in attempt.absent:
                            piece_of(last[index], piece).copy_(piece_of(value, piece))
                    continue
                into = part.values[index]
                if index in begun:
                    into.add_(value if attempt.weight == 1.0 else value * attempt.weight)
                elif attempt.weight == 1.0:
                    into.copy_(value)
                else:
                    torch.mul(value, attempt.weight, out=into)
                begun.add(index)
        for index, into in part.values.items():
            if index not in begun:
                into.zero_()

    def _values(self, attempt: SealedAttempt) -> dict[int, torch.Tensor]:
        blocks = self._held.blocks
        return {i: tensor_of(cast(memoryview, p), blocks[i].dtype) for i, p in attempt.payloads.items()}

    # ------------------------------------------------------------ the whole sum

    def adopt(self, key: SumKey, reduced: object, ranks: Sequence[int]) -> tuple[Fence | None, ...]:
        """Make `reduced` the complete sum `key`; returns the attempt of each slot."""
        part = cast(GroupPart, reduced)
        layout = self._layout(len(ranks), initial=key.step == INIT_STEP)
        with tracing.span("install", step=key.step):
            rows = [layout.read_row(part, slot) for slot in range(layout.num_slots)]
            found = tuple(None if row is None else row.fence for row in rows)
            known = [row for row in rows if row is not None]
            if len(known) < len(rows):
                self._sums.begin(key)
            elif part.slots:
                self._add_slots(key, layout, part, known)
            else:
                self._install(self._sums.begin(key), layout, part, known, ranks)
            if not layout.initial:
                self._spare[id(layout)] = part
            return found

    def _add_slots(self, key: SumKey, layout: GroupLayout, part: GroupPart, rows: Sequence[SlotRow]) -> None:
        """Add the slots, which every member has, in slot order, as a server does."""
        for slot, row in enumerate(rows):
            views = part.slot_values(layout, slot)
            payloads: Mapping[int, object] = {index: bytes_of(views[index]) for index in row.blocks}
            revs = dict.fromkeys(row.blocks, 0)
            self._sums.add(key, SealedAttempt(row.weight, row.absent, payloads, slot, row.fence, revs))

    def _install(
        self, total: Sum, layout: GroupLayout, part: GroupPart, rows: Sequence[SlotRow], ranks: Sequence[int]
    ) -> None:
        blocks = self._held.blocks
        counts: dict[int, int] = {}
        for row in rows:
            total.begin_slot(row.weight)
            for index in row.blocks:
                total.presence.note(blocks[index], row.absent)
                counts[index] = counts.get(index, 0) + 1
        for index, count in counts.items():
            kind = blocks[index].kind
            if kind == Kind.PARAMETER:
                total.install(index, self._sums.memory(index), part.values[index], count)
            elif kind == Kind.MEAN:
                total.set_value(index, part.values[index])
            else:
                total.set_value(index, self._held.value(index).clone())
        if layout.gathered:
            self._take_last(total, layout, part, rows, ranks)

    def _take_last(
        self, total: Sum, layout: GroupLayout, part: GroupPart, rows: Sequence[SlotRow], ranks: Sequence[int]
    ) -> None:
        """Set buffers that are not averaged to the value of the last slot that changed them."""
        by_rank = [part.last_values(layout, rank) for rank in range(len(part.everyone))] or [part.last_values(layout)]
        for slot, row in enumerate(rows):
            # A member sends the value of its own last slot with that buffer: a later slot overwrites it.
            for index in row.blocks:
                if index in by_rank[ranks[slot]]:
                    for piece in self._held.blocks[index].pieces:
                        if piece.tensor not in row.absent:
                            source = by_rank[ranks[slot]][index]
                            piece_of(total.values[index], piece).copy_(piece_of(source, piece))
