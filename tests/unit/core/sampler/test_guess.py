"""Which slots a worker will probably lease next."""

from __future__ import annotations

from msgspec.structs import replace

from paceline.core.sampler.guess import NextSlots
from paceline.types import Segment, SlotId

SEGMENT = Segment(0, 0, 0, 0, 40, 1, 160, 4, 1, True, False, 0, "bsp")


def leased(*slots: tuple[int, int]) -> NextSlots:
    guess = NextSlots()
    for slot in slots:
        guess.leased(SEGMENT, SlotId(*slot))
    return guess


def test_a_worker_alone_gets_the_slots_in_order() -> None:
    assert leased((0, 0)).ahead(2) == (SlotId(0, 1), SlotId(0, 2))
    assert leased((0, 2), (0, 3)).ahead(2) == (SlotId(1, 0), SlotId(1, 1))
    assert leased((39, 2)).ahead(5) == (SlotId(39, 3),)


def test_one_of_two_workers_gets_every_other_slot() -> None:
    assert leased((0, 0), (0, 2), (1, 0)).ahead(2) == (SlotId(1, 2), SlotId(2, 0))


def test_wrong_guesses_end_and_right_ones_begin_again() -> None:
    guess = leased((0, 0), (0, 1), (0, 3), (1, 0), (1, 3))
    assert guess.ahead(4) == ()
    guess.leased(SEGMENT, SlotId(2, 2))
    assert guess.ahead(1) == (SlotId(3, 1),)


def test_another_plan_begins_anew() -> None:
    guess = leased((0, 0), (0, 1))
    other = replace(SEGMENT, revision=1)
    guess.leased(other, SlotId(3, 0))
    assert guess.ahead(1) == (SlotId(3, 1),)
