"""The dials of each step, from the schedule and from live changes, and the segments that follow."""

from __future__ import annotations

from tests.kit.core import segment

from paceline.config.live import parse_schedule
from paceline.core.live_plan import (
    Dials,
    LiveChange,
    checkpoints_at,
    dials_at,
    next_segment,
    segments_from,
    with_change,
)
from paceline.core.sampling import phase_end, sample_range
from paceline.core.schedule import Schedule
from paceline.types import DialChange, PhaseSpec

ROWS = parse_schedule("bsp@10,asp@20,ssp:2")


def change(step: int, revision: int = 1, **dials: object) -> LiveChange:
    return LiveChange(step, revision, DialChange(**dials))  # type: ignore[arg-type]


def modes(changes: tuple[LiveChange, ...], *steps: int) -> list[str]:
    return [dials_at(step, ROWS, changes).mode.name for step in steps]


def test_a_row_holds_until_the_next_and_a_change_until_the_next_row() -> None:
    assert modes((), 0, 9, 10, 19, 20, 99) == ["bsp", "bsp", "asp", "asp", "ssp:2", "ssp:2"]
    assert modes((change(5, mode="ssp:9"),), 4, 5, 9, 10) == ["bsp", "ssp:9", "ssp:9", "asp"]
    assert modes((change(10, mode="bsp"),), 9, 10, 19, 20) == ["bsp", "bsp", "bsp", "ssp:2"]


def test_slots_hold_with_their_mode_and_rates_until_they_are_set_again() -> None:
    changes: tuple[LiveChange, ...] = (
        change(5, slots=3, lr_scale=0.5),
        change(12, 2, slots=7),
        change(15, 3, mode="bsp"),
    )
    found = [dials_at(step, ROWS, changes) for step in (4, 5, 9, 10, 12, 15, 20)]
    assert [dials.slots for dials in found] == [0, 3, 3, 0, 7, 0, 0]
    assert [dials.lr_scale for dials in found] == [1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    changes = with_change(changes, change(16, 4, lr=0.01))
    assert (dials_at(16, ROWS, changes).lr, dials_at(16, ROWS, changes).lr_scale) == (0.01, 1.0)


def test_a_newer_change_replaces_what_older_ones_say_of_its_dials_for_later_steps() -> None:
    changes = with_change((), change(30, 1, mode="asp", slots=2, lr_scale=0.5))
    changes = with_change(changes, change(25, 2, mode="bsp"))
    assert [(known.step, known.change) for known in changes] == [
        (25, DialChange(mode="bsp")),
        (30, DialChange(lr_scale=0.5)),
    ]
    changes = with_change(changes, change(25, 3, lr_scale=2.0))
    assert [known.revision for known in changes] == [2, 3]
    assert dials_at(99, ROWS, changes).lr_scale == 2.0


def test_checkpoints_follow_the_newest_change() -> None:
    changes = (change(5, checkpoint_steps=7, checkpoint_s=0.0), change(9, 2, checkpoint_steps=0, checkpoint_s=3.0))
    assert [checkpoints_at(step, changes) for step in (4, 5, 9)] == [None, (7, 0.0), (0, 3.0)]


def slots_of(dials: Dials) -> int:
    return dials.slots or dials.mode.default_slots or 4


def test_segments_cover_every_sample_once_whatever_the_slots() -> None:
    for data_len, drop_last, steps in ((1000, False, 0), (1003, True, 0), (97, False, 40)):
        spec = PhaseSpec(0, data_len, 8, None, 2, True, drop_last, steps)
        first = phase_end(spec, segment(data_len=data_len, batch_size=8, slots=4, drop_last=drop_last))
        changes = with_change((), change(13, 1, slots=3))
        changes = with_change(changes, change(23, 2, slots=2))
        made = segments_from(spec, 0, first, ROWS, changes, slots_of)
        assert [s.step for s in made] == [0, 10, 13, 20, 23][: len(made)]
        assert [s.revision for s in made] == [0, 0, 1, 1, 2][: len(made)]
        schedule, at, epochs = Schedule(made), 0, set()
        usable = data_len - data_len % 8 if drop_last else data_len
        for step in range(schedule.end_step):
            place = schedule.place(step)
            assert place.epoch * usable + place.offset == at
            at += place.samples
            epochs.add(place.epoch)
        if not steps:
            assert at == 2 * usable
            assert epochs == {0, 1}
        else:
            assert schedule.end_step == 40


def test_a_change_of_the_rate_keeps_the_slots() -> None:
    spec = PhaseSpec(0, 1000, 8, None, 2, True, False)
    first = phase_end(spec, segment(data_len=1000, batch_size=8, slots=6))
    made = next_segment(spec, 0, first, 5, ROWS, (change(5, lr=0.3),), slots_of)
    assert (made.slots, made.lr, made.mode) == (6, 0.3, "bsp")
    assert (made.epoch, made.offset) == sample_range(first, 5)[:2]
