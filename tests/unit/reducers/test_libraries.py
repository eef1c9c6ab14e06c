"""Which library a group takes, and reductions by copies on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

from paceline.blocks.group_parts import GroupLayout, GroupPart
from paceline.core.layout import cut
from paceline.reducers.gloo import MeetingStore
from paceline.reducers.libraries import Staged, choose, own_offer
from paceline.types import Kind, TensorSpec

BLOCKS = cut((TensorSpec("weight", (100,), "float32", Kind.PARAMETER, 0), TensorSpec("n", (), "int64", Kind.LAST)))


@pytest.mark.parametrize(
    ("offers", "devices"),
    [
        ([b"0 a", b"0 b"], ["cpu", "cpu"]),
        ([b"1 a", b"0 b"], ["cpu", "cpu"]),
        ([b"1 a", b"1 b"], ["cuda:0", "cuda:0"]),
        ([b"2 a", b"1 b", b"2 a"], ["cuda:0", "cuda:0", "cuda:1"]),
        ([b"1 a", b"1 a"], ["cpu", "cpu"]),
    ],
)
def test_a_group_reduces_on_gpus_if_each_member_can_have_one(offers: list[bytes], devices: list[str]) -> None:
    assert [str(choose(offers, rank)) for rank in range(len(offers))] == devices


def test_a_member_offers_its_gpus_and_its_host() -> None:
    number, host = own_offer("10.0.0.1").decode().split()
    assert (int(number), host) == (torch.cuda.device_count() if c10d.is_nccl_available() else 0, "10.0.0.1")


def alone(part_of: dict[str, Any]) -> tuple[Staged, GroupPart]:
    """A library that reduces copies, for a group of one on Gloo; the part of its member."""
    kind: Any = c10d.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname="127.0.0.1")]
    library = Staged(kind(MeetingStore(lambda key, value: None), 0, 1, options), 1, torch.device("cpu"), lambda: None)
    part = GroupPart(GroupLayout(BLOCKS, 2, 1, initial=False, **part_of))
    for memory in (*part.summed, *part.slots, *([] if part.gathered is None else [part.gathered])):
        memory.fill_(3)
    return library, part


@pytest.mark.parametrize("ordered", [False, True])
def test_a_part_is_reduced_in_copies_on_the_device(ordered: bool) -> None:
    library, part = alone({"ordered": ordered})
    ended: list[None] = []
    before = [memory.clone() for memory in (*part.summed, *part.slots)]
    library.issue(part, [0], lambda: ended.append(None))
    library.free()
    library.check()
    assert len(ended) == 1
    assert all(torch.equal(a, b) for a, b in zip((*part.summed, *part.slots), before, strict=True))
    assert [int(memory[0]) for memory in part.everyone] == ([3] if part.gathered is not None else [])


def test_an_error_on_the_device_ends_the_group() -> None:
    library, part = alone({"ordered": True})
    ended: list[None] = []
    library.issue(part, [7], lambda: ended.append(None))  # there is no rank 7
    library.free()
    assert len(ended) == 1
    with pytest.raises(RuntimeError):
        library.check()
