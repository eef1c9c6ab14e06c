"""The schedule: what each step consists of."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.core import segment

from paceline.core.sampling import full_steps, num_steps, sample_range
from paceline.core.schedule import Schedule
from paceline.types import INIT_STEP, Segment, SlotId


@st.composite
def _segments(draw: st.DrawFn) -> Segment:
    batch = draw(st.integers(1, 4))
    data_len = draw(st.integers(batch, 60))
    made = segment(
        step=draw(st.integers(0, 9)),
        epoch=draw(st.integers(0, 2)),
        offset=draw(st.integers(0, data_len - batch)),
        data_len=data_len,
        slots=draw(st.integers(1, 5)),
        batch_size=batch,
        drop_last=draw(st.booleans()),
        window=draw(st.integers(0, 3)),
    )
    made = msgspec.structs.replace(made, end_epoch=made.epoch + 3)
    return msgspec.structs.replace(made, end_step=made.step + num_steps(made))


@settings(deadline=None)
@given(_segments(), st.integers(0, 12), st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_the_number_of_slots_does_not_depend_on_what_was_asked_before(
    first: Segment, later: int, asked: list[int]
) -> None:
    second = msgspec.structs.replace(first, step=first.step + later, slots=first.slots + 1, window=first.window + 1)
    schedule = Schedule((first, second))
    for number in asked:
        step = first.step + number % max(1, first.end_step - first.step)
        source = second if step >= second.step else first
        assert schedule.num_slots(step) == sample_range(source, step).slots
        assert schedule.window(step) == source.window
    assert (schedule.num_slots(INIT_STEP), schedule.window(INIT_STEP)) == (1, 0)


@settings(deadline=None)
@given(_segments())
def test_full_steps_are_those_with_all_samples(made: Segment) -> None:
    for step in range(made.step, made.end_step):
        first, end = full_steps(made, step)
        here = sample_range(made, step)
        assert (first <= step < end) == (here.samples == made.slots * made.batch_size)
        around = [sample_range(made, other) for other in range(first, end)]
        assert all((other.epoch, other.samples) == (here.epoch, here.samples) for other in around)


def test_a_segment_that_is_appended_decides_at_once() -> None:
    first = segment(step=0, data_len=100, slots=2, batch_size=1, end_step=50)
    schedule = Schedule((first,))
    assert schedule.num_slots(7) == 2
    schedule.append(msgspec.structs.replace(first, step=5, slots=4, window=3))
    assert (schedule.num_slots(4), schedule.num_slots(7)) == (2, 4)
    assert (schedule.window(4), schedule.window(7)) == (0, 3)


def test_a_schedule_without_segments_has_no_steps() -> None:
    with pytest.raises(IndexError):
        Schedule().window(0)


@settings(deadline=None)
@given(_segments(), st.integers(0, 12), st.integers(0, 30), st.integers(0, 60))
def test_slots_between_are_the_sum_of_the_steps(first: Segment, later: int, begin: int, most: int) -> None:
    second = msgspec.structs.replace(first, step=first.step + later, slots=first.slots + 1)
    schedule = Schedule((first, second))
    steps = range(first.step + begin, first.end_step)
    total = sum(Schedule((first, second)).num_slots(step) for step in steps)
    assert schedule.slots_between(steps.start, steps.stop, 1 << 40) == total
    assert min(schedule.slots_between(steps.start, steps.stop, most), most + 1) == min(total, most + 1)


def test_the_samples_of_a_slot_are_known_unless_they_are_drawn_by_weight() -> None:
    known = segment(step=0, data_len=16, slots=2)
    assert len(Schedule([known]).known_samples(SlotId(0, 1), 7)) == known.batch_size
    assert Schedule([msgspec.structs.replace(known, weights="digest")]).known_samples(SlotId(0, 1), 7) == ()
    assert Schedule([known]).known_samples(SlotId(INIT_STEP, 0), 7) == ()
