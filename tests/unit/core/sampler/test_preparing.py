"""A sampler: what it prepares first, what it keeps, and what it refuses."""

from __future__ import annotations

from msgspec.structs import replace

from paceline.core.sampler.preparing import Answer, Drop, Effect, Refuse, SamplerCore
from paceline.messages import AskSlot
from paceline.types import Segment, SlotId

SEGMENT = Segment(0, 0, 0, 0, 40, 1, 160, 4, 1, True, False, 0, "bsp")
NBYTES = 100


def asked(step: int, slot: int, req: int = 1, segment: Segment = SEGMENT, data: str = "data") -> AskSlot:
    return AskSlot(req, data, segment, step, slot)


def sampler(limit: int = 10**6, name: str = "a", least: int = 2) -> SamplerCore:
    return SamplerCore(name, "data", limit, least=least)


def prepare(core: SamplerCore, most: int = 100) -> tuple[list[SlotId], list[Effect]]:
    """Let `core` prepare whatever it wants to; returns the slots in order, and the effects."""
    slots: list[SlotId] = []
    effects: list[Effect] = []
    while len(slots) < most and (task := core.next_slot()) is not None:
        slots.append(task[1])
        effects += core.prepared(*task, NBYTES)
    return slots, effects


def test_nothing_is_prepared_before_the_first_question() -> None:
    assert sampler().next_slot() is None


def test_the_slot_that_a_worker_waits_for_goes_first_and_then_those_ahead() -> None:
    core = sampler()
    assert core.ask("w", asked(0, 0)) == []
    slots, effects = prepare(core)
    assert slots == [SlotId(0, 0), SlotId(0, 1), SlotId(0, 2), SlotId(0, 3), SlotId(1, 0)]  # one wait: 4 ahead
    assert [effect.slot for effect in effects if isinstance(effect, Answer)] == [SlotId(0, 0)]
    (answer,) = core.ask("w", asked(0, 1, 2))
    assert isinstance(answer, Answer)
    assert answer.question.req == 2
    assert prepare(core)[0] == [SlotId(1, 1)]
    assert (core.work.prepared, core.work.served, core.work.late) == (6, 2, 1)


def test_a_slot_is_prepared_once_for_two_workers_and_again_after_neither() -> None:
    core = sampler()
    core.ask("w", asked(0, 0, 1))
    task = core.next_slot()
    assert task is not None
    core.ask("v", asked(0, 0, 9))
    answers = core.prepared(*task, NBYTES)
    assert [(e.question.peer, e.question.req) for e in answers if isinstance(e, Answer)] == [("w", 1), ("v", 9)]
    assert any(isinstance(effect, Answer) for effect in core.ask("u", asked(0, 0))), "its worker may have died"


def test_back_pressure_no_more_than_the_limit_is_held_but_a_question_is_always_answered() -> None:
    core = sampler(limit=3 * NBYTES)
    for slot in range(4):
        core.ask("w", asked(0, slot))
        _, effects = prepare(core)
        assert core.work.nbytes <= 3 * NBYTES
        if slot == 0:
            assert any(isinstance(effect, Answer) for effect in effects)
    tight = sampler(limit=1)
    tight.ask("w", asked(0, 0))
    slots, effects = prepare(tight)
    assert slots[0] == SlotId(0, 0)
    assert any(isinstance(effect, Answer) for effect in effects)
    assert tight.work.nbytes <= NBYTES


def test_what_is_behind_the_leases_is_dropped() -> None:
    core = sampler()
    core.ask("w", asked(0, 0))
    prepare(core)
    effects = core.ask("w", asked(9, 0))
    assert {effect.slot for effect in effects if isinstance(effect, Drop)} >= {SlotId(0, i) for i in range(4)}


def test_another_revision_voids_what_was_prepared() -> None:
    core = sampler()
    core.ask("w", asked(0, 0))
    prepare(core)
    core.ask("w", asked(0, 3, 5))
    core.ask("w", asked(1, 3, 6))
    newer = replace(SEGMENT, revision=1, slots=2)
    effects = core.ask("v", asked(7, 1, 7, newer))
    assert any(isinstance(effect, Drop) for effect in effects)
    assert [(e.question.req, e.rule) for e in effects if isinstance(e, Refuse)] == [(6, "revision")]
    (refused,) = core.ask("w", asked(8, 0, 8))
    assert isinstance(refused, Refuse)
    assert (refused.question.req, refused.rule) == (8, "revision")


def test_a_batch_that_was_begun_for_an_older_plan_is_not_expected() -> None:
    core = sampler()
    core.ask("w", asked(0, 0))
    task = core.next_slot()
    assert task is not None
    assert core.expects(*task)
    core.ask("w", asked(0, 0, 2, replace(SEGMENT, revision=1)))
    assert not core.expects(*task)
    assert core.prepared(*task, NBYTES) == []


def test_other_data_are_refused() -> None:
    (refused,) = sampler().ask("w", asked(0, 0, data="other"))
    assert isinstance(refused, Refuse)
    assert refused.rule == "data"


def test_a_batch_that_cannot_be_sent_is_refused_to_everybody() -> None:
    core = sampler()
    core.ask("w", asked(0, 0))
    task = core.next_slot()
    assert task is not None
    (refused,) = core.failed(*task, "batch", "it contains a set")
    assert isinstance(refused, Refuse)
    assert refused.rule == "batch"
    (again,) = core.ask("v", asked(0, 0))
    assert isinstance(again, Refuse)
    assert again.rule == "batch"


def test_a_worker_that_is_gone_is_waited_for_no_more() -> None:
    core = sampler()
    core.ask("w", asked(0, 0))
    core.forget("w")
    assert not core.is_awaited
    slots, effects = prepare(core)
    assert slots[0] == SlotId(0, 1)
    assert not any(isinstance(effect, Answer) for effect in effects)


def test_after_a_rewind_the_leases_are_followed_back() -> None:
    core = sampler()
    core.ask("w", asked(20, 0))
    prepare(core)
    core.ask("w", asked(2, 0))
    core.ask("w", asked(2, 1))
    assert prepare(core)[0][:4] == [SlotId(2, 0), SlotId(2, 1), SlotId(2, 2), SlotId(2, 3)]


def test_samplers_share_the_slots_and_take_over_those_of_one_that_is_gone() -> None:
    first, second = sampler(name="a", least=4), sampler(name="b", least=4)
    for core in (first, second):
        core.roster(("b", "a"))
        core.ask("w", asked(0, 0))
        core.forget("w")
    mine, other = prepare(first)[0], prepare(second)[0]
    assert not set(mine) & set(other)
    first.roster(("a",))
    assert set(prepare(first)[0]) <= set(other)
