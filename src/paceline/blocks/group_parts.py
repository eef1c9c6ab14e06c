"""What a member adds to the sum of a group: flat buckets that the members reduce, and a header in them.

The layout follows from the model and the number of slots, so that all members have the same one. The header has a row
for each slot: its fence, its weight, and which blocks and tensors it has. A row is written by the member that has the
slot, as numbers below 2**16; all other members have zeros there. So the sum of the rows is exact.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch

from paceline.blocks.tensors import DTYPES
from paceline.types import BlockSpec, Fence, Kind

_FIXED = struct.Struct("<IQd")  # generation and counter of the fence, weight
_HEADER_DTYPE = torch.float32


class SlotRow(NamedTuple):
    """The row of one slot: its attempt, its weight, the blocks that it has, and the tensors that lack in them."""

    fence: Fence
    weight: float
    blocks: tuple[int, ...]
    absent: frozenset[int]


class GroupPart:
    """The part of one member in the sum of a step; after the reduction, the whole sum.

    The members reduce `summed` by addition. They exchange `gathered`, so that `everyone` has that of each rank. With
    `roots`, slot i is sent by rank `roots[i]` to all in `slots[i]`, and `summed` has only the header.
    """

    __slots__ = ("everyone", "gathered", "header", "slots", "summed", "values")

    def __init__(self, layout: GroupLayout) -> None:
        rows = torch.zeros(layout.header_numel, dtype=_HEADER_DTYPE)
        self.header = rows.view(layout.num_slots, -1)
        self.values: dict[int, torch.Tensor] = {}
        self.gathered: torch.Tensor | None = None
        self.everyone: list[torch.Tensor] = []
        self.slots: list[torch.Tensor] = []
        self.summed = [rows]
        if layout.initial or layout.ordered:
            nbytes = layout.values_nbytes
            memory = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(layout.num_slots)]
            self.slots = memory
            return
        for dtype, blocks in layout.reduced.items():
            has_header = dtype is _HEADER_DTYPE
            start = layout.header_numel if has_header else 0
            bucket = torch.zeros(start + sum(b.numel for b in blocks), dtype=dtype)
            if has_header:
                self.summed = []
                self.header = bucket[:start].view(layout.num_slots, -1)
            for block in blocks:
                self.values[block.index] = bucket[start : start + block.numel]
                start += block.numel
            self.summed.append(bucket)
        if layout.gathered:
            self.gathered = torch.zeros(sum(_aligned(b.nbytes) for b in layout.gathered), dtype=torch.uint8)

    # ------------------------------------------------------------ blocks that are not added

    def slot_values(self, layout: GroupLayout, slot: int) -> dict[int, torch.Tensor]:
        """The blocks of one slot, as views of `slots`."""
        return _views(self.slots[slot], layout.whole)

    def last_values(self, layout: GroupLayout, rank: int | None = None) -> dict[int, torch.Tensor]:
        """The blocks that are not averaged, as views: of this member, or as `rank` has sent them."""
        memory = self.gathered if rank is None else self.everyone[rank]
        return {} if memory is None else _views(memory, layout.gathered)


def _views(memory: torch.Tensor, blocks: Iterable[BlockSpec]) -> dict[int, torch.Tensor]:
    found, start = {}, 0
    for block in blocks:
        found[block.index] = memory[start : start + block.nbytes].view(DTYPES[block.dtype])
        start += _aligned(block.nbytes)
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


class GroupLayout:
    """Where each block lies in the parts of a group, for steps with `num_slots` slots.

    With `initial`, the one slot has all blocks, and with `ordered` each slot is sent whole: nothing is added here.
    """

    def __init__(
        self, blocks: Iterable[BlockSpec], num_tensors: int, num_slots: int, *, initial: bool, ordered: bool
    ) -> None:
        known = sorted(blocks, key=lambda b: b.index)
        self.num_slots, self.initial, self.ordered = num_slots, initial, ordered
        self.whole = [b for b in known if initial or b.kind != Kind.FROZEN]
        self.reduced: dict[torch.dtype, list[BlockSpec]] = {}
        for block in known:
            if block.kind in (Kind.PARAMETER, Kind.MEAN):
                self.reduced.setdefault(DTYPES[block.dtype], []).append(block)
        self.gathered = [b for b in known if b.kind == Kind.LAST]
        self._bits = len(known), num_tensors
        self._row_nbytes = _FIXED.size + sum(2 * -(-n // 16) for n in self._bits)
        self.header_numel = num_slots * (1 + self._row_nbytes // 2)

    @property
    def values_nbytes(self) -> int:
        """The bytes of all blocks of one slot."""
        return sum(_aligned(b.nbytes) for b in self.whole)

    # ------------------------------------------------------------ rows of the header

    def write_row(self, part: GroupPart, slot: int, row: SlotRow) -> None:
        """Write the row of a slot that this member has."""
        raw = _FIXED.pack(row.fence.generation, row.fence.counter, row.weight)
        raw += _bitmap(row.blocks, self._bits[0]) + _bitmap(row.absent, self._bits[1])
        numbers = struct.unpack(f"<{len(raw) // 2}H", raw)
        part.header[slot] = torch.tensor((1, *numbers), dtype=_HEADER_DTYPE)

    def read_row(self, part: GroupPart, slot: int) -> SlotRow | None:
        """The row of a slot; None if no member, or more than one, has written it."""
        numbers = [int(number) for number in part.header[slot].tolist()]
        if numbers[0] != 1:
            return None
        raw = struct.pack(f"<{len(numbers) - 1}H", *numbers[1:])
        generation, counter, weight = _FIXED.unpack_from(raw)
        split = _FIXED.size + 2 * -(-self._bits[0] // 16)
        blocks, absent = _members(raw[_FIXED.size : split]), _members(raw[split:])
        return SlotRow(Fence(generation, counter), weight, tuple(blocks), frozenset(absent))


def _bitmap(members: Collection[int], bits: int) -> bytes:
    return sum(1 << n for n in members).to_bytes(2 * -(-bits // 16), "little")


def _members(raw: bytes) -> Sequence[int]:
    bits = int.from_bytes(raw, "little")
    return [n for n in range(bits.bit_length()) if bits >> n & 1]
