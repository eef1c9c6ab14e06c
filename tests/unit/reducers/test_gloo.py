"""Groups on Gloo: members in threads of this process reduce, and survive the loss of one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from paceline.blocks.group_parts import GroupLayout, GroupPart
from paceline.core.layout import cut
from paceline.reducers.gloo import GlooGroup, MeetingStore
from paceline.types import Kind, TensorSpec

BLOCKS = cut((TensorSpec("weight", (100,), "float32", Kind.PARAMETER, 0), TensorSpec("n", (), "int64", Kind.LAST)))


def group_of(size: int) -> list[GlooGroup]:
    groups: list[GlooGroup] = []

    def publisher(rank: int) -> Callable[[str, bytes], None]:
        def publish(key: str, value: bytes) -> None:
            while len(groups) < size:
                time.sleep(0.001)
            for other, group in enumerate(groups):
                if other != rank:
                    group.put(key, value)

        return publish

    groups += [GlooGroup(rank, size, "127.0.0.1", publisher(rank)) for rank in range(size)]
    deadline = time.monotonic() + 20
    while any(group.is_forming for group in groups):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return groups


def parts_of(size: int, *, ordered: bool = False) -> list[GroupPart]:
    layout = GroupLayout(BLOCKS, 2, size, initial=False, ordered=ordered)
    parts = [GroupPart(layout) for _ in range(size)]
    for rank, part in enumerate(parts):
        for value in part.values.values():
            value.fill_(rank + 1)
        for memory in part.slots[rank : rank + 1]:
            memory.fill_(rank + 1)
        if part.gathered is not None:
            part.gathered.fill_(rank + 1)
    return parts


def finish(groups: list[GlooGroup], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while sum(group.poll(0.01) for group in groups) < len(groups):  # each call also begins its part
        assert time.monotonic() < deadline


@pytest.mark.parametrize("size", [1, 2, 3])
def test_members_get_the_sum_and_what_each_has_sent(size: int) -> None:
    groups, parts = group_of(size), parts_of(size)
    for group, part in zip(groups, parts, strict=True):
        group.begin(part, range(size))
    finish(groups)
    assert [group.problem for group in groups] == [""] * size
    expected = sum(range(1, size + 1))
    for part in parts:
        assert all(torch.equal(value, torch.full_like(value, expected)) for value in part.values.values())
        assert [int(sent[0]) for sent in part.everyone] == (list(range(1, size + 1)) if size > 1 else [])
    for group in groups:
        group.close(5.0)


def test_whole_slots_come_from_their_member() -> None:
    groups, parts = group_of(2), parts_of(2, ordered=True)
    for group, part in zip(groups, parts, strict=True):
        group.begin(part, [0, 1])
    finish(groups)
    assert [[int(memory[0]) for memory in part.slots] for part in parts] == [[1, 2], [1, 2]]
    for group in groups:
        group.close(5.0)


def test_a_member_that_leaves_breaks_the_group_of_the_others() -> None:
    groups, parts = group_of(2), parts_of(2)
    groups[1].close(5.0)
    groups[0].begin(parts[0], [0, 1])
    finish(groups[:1])
    assert groups[0].problem
    groups[0].close(5.0)


def test_a_group_whose_members_do_not_come_can_be_left_at_once() -> None:
    group = GlooGroup(0, 2, "127.0.0.1", lambda key, value: None)
    began = time.monotonic()
    group.close(10.0)
    assert time.monotonic() - began < 8.0
    assert not group.is_forming


def test_a_store_hands_out_what_others_have_published() -> None:
    said: list[tuple[str, bytes]] = []
    store = MeetingStore(lambda key, value: said.append((key, value)))
    store.set("a", "1")
    store.put("b", b"2")
    assert said == [("a", b"1")]
    assert (store.get("a"), store.get("b"), store.check(["a", "b"]), store.check(["c"])) == (b"1", b"2", True, False)
    store.close()
    with pytest.raises(RuntimeError, match="over"):
        store.wait(["c"])
