"""The plan that a server knows: a higher revision replaces the whole plan, a lower one is ignored."""

from __future__ import annotations

from tests.kit.core import plan, segment

from paceline.core.server.plan import KnownPlan

FIRST = segment(slots=2, end_step=5)


def slots_of(known: KnownPlan) -> list[int]:
    return [s.slots for s in known.schedule.segments]


def test_a_higher_revision_replaces_a_segment() -> None:
    known = KnownPlan()
    known.take(plan(FIRST, segment(step=5, slots=4, end_step=9), revision=2))
    known.take(plan(FIRST, segment(step=5, slots=1, end_step=9), revision=3))
    assert (known.revision, slots_of(known)) == (3, [2, 1])
    known.take(plan(FIRST, revision=4))
    assert (known.revision, slots_of(known)) == (4, [2]), "the server forgets a segment that the new plan lacks"


def test_a_lower_revision_is_ignored() -> None:
    known = KnownPlan()
    known.take(plan(FIRST, segment(step=5, slots=4, end_step=9), revision=2))
    known.take(plan(FIRST, final=7, revision=1))
    assert (known.revision, slots_of(known), known.final) == (2, [2, 4], -1)


def test_a_plan_of_the_same_revision_can_set_the_last_version() -> None:
    known = KnownPlan()
    known.take(plan(FIRST))
    known.take(plan(FIRST, final=3))
    known.take(plan(FIRST))
    assert known.final == 3
    assert known.is_beyond_end(5)
    assert not known.is_beyond_end(4)


def test_reset_forgets_the_plan() -> None:
    known = KnownPlan()
    known.take(plan(FIRST, final=3))
    known.reset()
    assert (known.revision, slots_of(known), known.final) == (0, [], -1)
    known.take(plan(FIRST))
    assert slots_of(known) == [2], "revisions restart with an incarnation"
