"""The parts of a group: what members write into the header is what all of them read after the sum."""

from __future__ import annotations

import pytest
import torch
from tests.kit.server import BLOCKS, TENSORS

from paceline.blocks.group_parts import GroupLayout, GroupPart, SlotRow
from paceline.types import Fence

ROWS = {
    0: SlotRow(Fence(3, 1 << 40), 1.0, (0, 2), frozenset({1, 4})),
    1: SlotRow(Fence(70_000, 7), 37 / 64, tuple(b.index for b in BLOCKS), frozenset()),
    2: SlotRow(Fence(1, 65_535), 0.0, (), frozenset()),
}


def layout_of(slots: int = 3, *, ordered: bool = False) -> GroupLayout:
    return GroupLayout(BLOCKS, len(TENSORS), slots, initial=False, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_of_several_members_add_up_exactly(ordered: bool) -> None:
    layout = layout_of(ordered=ordered)
    parts = [GroupPart(layout) for _ in range(2)]
    for slot, row in ROWS.items():
        layout.write_row(parts[slot % 2], slot, row)
    for own, other in zip(parts[0].summed, parts[1].summed, strict=True):
        own += other
    assert {slot: layout.read_row(parts[0], slot) for slot in ROWS} == ROWS


def test_a_row_that_nobody_or_two_members_wrote_is_none() -> None:
    layout = layout_of()
    part = GroupPart(layout)
    layout.write_row(part, 0, ROWS[0])
    part.summed[0][: layout.header_numel] *= 2
    assert [layout.read_row(part, slot) for slot in (0, 1)] == [None, None]


def test_every_block_lies_in_a_bucket_of_its_type() -> None:
    part = GroupPart(layout_of())
    assert {bucket.dtype for bucket in part.summed} == {torch.float32, torch.bfloat16}
    for index, value in part.values.items():
        assert value.numel() == BLOCKS[index].numel
        assert str(value.dtype) == f"torch.{BLOCKS[index].dtype}"
