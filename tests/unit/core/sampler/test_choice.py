"""Which sampler prepares which slot: all agree, all samplers have the same work, and more of them cost no more."""

from __future__ import annotations

from itertools import islice

import pytest

from paceline.core.sampler.choice import own_slots, ranked, slots_after
from paceline.types import Segment, SlotId

SEGMENT = Segment(3, 0, 0, 0, 40, 1, 100, 4, 3, True, False, 0, "bsp")


def every(segment: Segment = SEGMENT) -> list[SlotId]:
    return [SlotId(segment.step, 0), *slots_after(segment, SlotId(segment.step, 0))]


def test_the_slots_of_a_phase_follow_each_other_and_short_steps_have_fewer() -> None:
    slots = every()
    assert slots == sorted(set(slots))
    assert [slot.slot for slot in slots if slot.step == 11] == [0, 1]  # 100 samples: 8 steps of 12, and 4 samples


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_slot_has_one_first_sampler_and_each_sampler_knows_its_own(count: int) -> None:
    names = [f"sampler-{i}" for i in range(count)]
    first = SlotId(SEGMENT.step, -1)
    mine = {name: list(own_slots(name, names, SEGMENT, first)) for name in names}
    assert sorted(slot for slots in mine.values() for slot in slots) == every()
    for name, slots in mine.items():
        assert slots == sorted(slots)
        assert all(ranked(names[::-1], SEGMENT, slot)[0] == name for slot in slots)


def test_of_n_slots_in_a_row_each_of_n_samplers_prepares_one() -> None:
    names = ["a", "b", "c", "d"]
    for step in (3, 4, 5):
        assert {ranked(names, SEGMENT, SlotId(step, i))[0] for i in range(4)} == set(names)


def test_the_next_samplers_to_ask_are_all_others() -> None:
    order = ranked(["a", "b", "c"], SEGMENT, SlotId(5, 2))
    assert sorted(order) == ["a", "b", "c"]
    assert ranked([], SEGMENT, SlotId(5, 2)) == []


def test_a_sampler_lists_its_slots_without_looking_at_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.core.sampler import choice

    looked: list[int] = []
    real = choice._shift

    def shift(segment: Segment, group: int) -> int:
        looked.append(group)
        return real(segment, group)

    monkeypatch.setattr(choice, "_shift", shift)
    names = [f"sampler-{i}" for i in range(1000)]
    long = Segment(0, 0, 0, 0, 10**6, 1, 10**7, 8, 1, True, False, 0, "bsp")
    slots = list(islice(own_slots("sampler-7", names, long, SlotId(0, -1)), 10))
    assert len(slots) == 10
    assert len(looked) <= 11
