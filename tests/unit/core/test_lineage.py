"""Which commits led to a state: the chain of incarnations, and the steps that the state contains."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.effects import IncarnationFact
from paceline.core.lineage import Span, committed_steps, is_shared, lineage, shared_versions
from paceline.core.window import Watermark
from paceline.errors import StateError
from paceline.messages import JobArgs, Position


def begun(number: int, parent: int | None = None, version: int = -1) -> IncarnationFact:
    job = JobArgs(7, "bsp", None, 1)
    position = None if parent is None else Position(parent, version, version, (), (), (), (), job, {})
    return IncarnationFact(number, "", position, "test")


def test_a_job_that_was_never_rewound_has_one_open_span() -> None:
    assert lineage([]) == (Span(0, 0, None),)
    assert lineage([], until=7) == (Span(0, 0, 7),)


def test_each_ancestor_ends_where_its_child_began() -> None:
    facts = [begun(1, 0, 500), begun(2, 1, 800), begun(3, 1, 700)]
    assert lineage(facts) == (Span(0, 0, 500), Span(1, 501, 700), Span(3, 701, None))
    assert lineage(facts, of=2) == (Span(0, 0, 500), Span(1, 501, 800), Span(2, 801, None))
    assert lineage(facts, of=1, until=600) == (Span(0, 0, 500), Span(1, 501, 600))
    assert lineage(facts, of=3, until=500) == (Span(0, 0, 500),)


def test_an_incarnation_that_adds_no_commit_is_left_out() -> None:
    assert lineage([begun(1, 0, 500), begun(2, 0, 500)]) == (Span(0, 0, 500), Span(2, 501, None))
    assert lineage([begun(1, 0, 500), begun(2, 1, 500)]) == (Span(0, 0, 500), Span(2, 501, None))
    assert lineage([begun(1, 0, 500), begun(2, 1, 400)]) == (Span(0, 0, 400), Span(2, 401, None))


def test_an_incarnation_may_begin_without_a_checkpoint() -> None:
    assert lineage([begun(1, 0, 500), begun(2)]) == (Span(2, 0, None),)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ([begun(2, 1, 5)], "how incarnation 1 began"),
        ([begun(1, 1, 5)], "incarnation 1 cannot begin from incarnation 1"),
        ([begun(1, 2, 5), begun(2, 1, 5)], "incarnation 1 cannot begin from incarnation 2"),
    ],
)
def test_an_impossible_lineage_is_refused_by_name(facts: list[IncarnationFact], named: str) -> None:
    with pytest.raises(StateError, match=named):
        lineage(facts)


@settings(deadline=None)
@given(st.sets(st.integers(0, 60)), st.integers(0, 30), st.sets(st.integers(0, 60)))
def test_the_watermark_computed_from_the_newest_steps_is_correct(new: set[int], low: int, above: set[int]) -> None:
    base = Watermark()
    for step in [*range(low), *(s for s in above if s >= low)]:
        base.add(step)
    low, above = base.low, {s for s in above if s > base.low}
    new = {s for s in new if not base.has(s)}
    for step in random.Random(len(new)).sample(sorted(new), len(new)):
        base.add(step)
    found = committed_steps(low, above, len(new), sorted(new, reverse=True))
    assert found == (base.low, tuple(s for s in range(base.low, 61) if base.has(s)))


def test_only_the_steps_above_the_lowest_gap_are_read() -> None:
    taken = []

    def steps() -> Iterator[int]:
        for step in range(999_999, -1, -1):
            if step != 999_990:
                taken.append(step)
                yield step

    assert committed_steps(0, (), 999_999, steps()) == (999_990, tuple(range(999_991, 1_000_000)))
    assert len(taken) < 20
    taken.clear()
    assert committed_steps(0, (), 1_000_000, iter([999_999])) == (1_000_000, ())


def test_the_newest_incarnation_shares_versions_with_those_from_which_it_descends() -> None:
    assert shared_versions([]) == {0: None}
    facts = [begun(1, 0, 20), begun(2, 1, 30), begun(3, 2, 25)]
    shared = shared_versions(facts)
    assert shared == {3: None, 2: 25, 1: 25, 0: 20}
    assert is_shared(shared, 3, 99)
    assert is_shared(shared, 2, 25)
    assert not is_shared(shared, 2, 26)
    assert not is_shared(shared, 1, 28), "version 28 of incarnation 1 was undone with incarnation 2"


def test_an_incarnation_that_began_anew_shares_nothing() -> None:
    assert shared_versions([begun(1, 0, 20), begun(2)]) == {2: None}
