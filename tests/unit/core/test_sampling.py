"""Slot -> samples: a pure function that must never change silently, since every run's bits depend on it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from msgspec.structs import replace
from tests.kit.core import segment

from paceline.core.sampling import (
    Order,
    data_after,
    data_before,
    epochs_begun,
    num_steps,
    permute,
    phase_end,
    sample_range,
    slot_seed,
)
from paceline.types import PhaseSpec


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000, 4097, 60_000])
def test_every_epoch_is_a_permutation(n: int) -> None:
    for epoch in (0, 1, 5):
        assert sorted(permute(np.arange(n), n, 7, epoch).tolist()) == list(range(n))


def test_the_order_of_samples_is_frozen() -> None:
    assert permute(np.arange(10), 10, 7, 0).tolist() == [7, 3, 2, 9, 8, 4, 0, 5, 1, 6]
    assert permute(np.arange(10), 10, 7, 1).tolist() == [7, 8, 1, 4, 2, 3, 5, 0, 9, 6]
    assert permute(np.arange(5), 1000, 0, 0).tolist() == [330, 677, 837, 532, 287]
    whole = permute(np.arange(60_000), 60_000, 7, 0).astype("<i8").tobytes()
    assert hashlib.sha256(whole).hexdigest() == "ad9f97da56e4e014436ee3908974b11622a7fb6068179fd061547ec3d05d855a"


def test_the_seeds_of_slots_are_frozen() -> None:
    assert slot_seed(7, 0, 0) == 7287818224479439947
    assert slot_seed(7, 0, 1) == 1952295939656977403
    assert slot_seed(7, 1, 0) == 2279997253934671342
    assert slot_seed(7, 0, 0, "data") == 8108073115313107021
    assert len({slot_seed(7, t, i) for t in range(50) for i in range(50)}) == 2500


def test_each_position_can_be_computed_without_the_others() -> None:
    whole = permute(np.arange(5000), 5000, 3, 2)
    for position in (0, 1, 4095, 4096, 4999):
        assert permute(np.array([position]), 5000, 3, 2)[0] == whole[position]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("data_len", "slots", "batch"), [(20, 2, 2), (21, 2, 2), (23, 3, 4), (5, 4, 2), (9000, 3, 500)]
)
def test_an_epoch_has_every_sample_once(data_len: int, slots: int, batch: int, drop_last: bool) -> None:
    seg = segment(data_len=data_len, slots=slots, batch_size=batch, drop_last=drop_last, end_epoch=3)
    order = Order(7)
    epochs: dict[int, list[int]] = {}
    for step in range(num_steps(seg)):
        at = sample_range(seg, step)
        for slot in range(at.slots):
            samples = order.samples(seg, step, slot)
            assert 0 < len(samples) <= batch
            if drop_last:
                assert len(samples) == batch
            epochs.setdefault(at.epoch, []).extend(samples.tolist())
    usable = data_len - data_len % batch if drop_last else data_len
    assert sorted(epochs) == [0, 1, 2]
    for samples_of_epoch in epochs.values():
        assert len(samples_of_epoch) == len(set(samples_of_epoch)) == usable
    assert epochs[0] != epochs[1]


def test_the_last_step_of_an_epoch_may_be_short() -> None:
    seg = segment(data_len=11, slots=3, batch_size=2, end_epoch=2)
    assert num_steps(seg) == 4
    assert [sample_range(seg, t) for t in range(4)] == [(0, 0, 6, 3), (0, 6, 5, 3), (1, 0, 6, 3), (1, 6, 5, 3)]
    assert len(Order(1).samples(seg, 1, 2)) == 1
    assert sample_range(segment(data_len=7, slots=4, batch_size=2), 0) == (0, 0, 7, 4)
    assert sample_range(segment(data_len=3, slots=4, batch_size=2), 0).slots == 2


def test_a_segment_may_begin_in_the_middle_of_an_epoch() -> None:
    whole = segment(data_len=20, slots=2, batch_size=2, end_epoch=2)
    later = segment(data_len=20, slots=1, batch_size=2, end_epoch=2, step=3, offset=12)
    assert num_steps(later) == 4 + 10
    assert sample_range(later, 3) == (0, 12, 2, 1)
    assert sample_range(later, 7) == (1, 0, 2, 1)
    order = Order(7)
    rest = [s for t in range(3, 7) for s in order.samples(later, t, 0).tolist()]
    before = [s for t in range(3) for i in range(2) for s in order.samples(whole, t, i).tolist()]
    assert sorted(before + rest) == list(range(20))


def test_a_segment_that_begins_within_an_epoch_drops_the_remainder_of_its_own_slots() -> None:
    seg = segment(data_len=10, slots=1, batch_size=3, drop_last=True, offset=2, end_epoch=2)
    assert [sample_range(seg, t) for t in range(num_steps(seg))] == [
        (0, 2, 3, 1),
        (0, 5, 3, 1),
        (1, 0, 3, 1),
        (1, 3, 3, 1),
        (1, 6, 3, 1),
    ]


def test_without_shuffling_samples_come_in_order() -> None:
    seg = segment(data_len=7, slots=2, batch_size=2, shuffle=False)
    got = [Order(7).samples(seg, t, i).tolist() for t in range(2) for i in range(2)]
    assert got == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_slot_that_crosses_the_border_of_a_chunk_has_all_its_samples() -> None:
    seg = segment(data_len=10_000, slots=1, batch_size=3000)
    order = Order(7)
    got = [s for t in range(4) for s in order.samples(seg, t, 0).tolist()]
    assert got == permute(np.arange(10_000), 10_000, 7, 0).tolist()


@pytest.mark.parametrize("changes", [{"data_len": 0}, {"data_len": 1, "drop_last": True}])
def test_a_segment_without_a_usable_batch_has_no_steps(changes: dict[str, object]) -> None:
    assert num_steps(segment(end_epoch=3, **changes)) == 0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("lengths", [(3, 3, 1, 6), (5, 5), (1,) * 11, (13,)])
def test_phases_of_a_number_of_steps_have_the_samples_of_one_long_phase(
    lengths: tuple[int, ...], drop_last: bool
) -> None:
    spec = PhaseSpec(0, 19, 2, 2, 1, True, drop_last)
    whole = phase_end(replace(spec, epochs=3), segment(data_len=19, drop_last=drop_last, end_step=0))
    last, step = None, 0
    for steps in lengths:
        here = replace(spec, steps=steps)
        epoch, offset = data_before(here, last)
        last = phase_end(here, segment(data_len=19, drop_last=drop_last, step=step, epoch=epoch, offset=offset))
        assert last.end_step == step + steps
        assert last.end_epoch == sample_range(whole, last.end_step).epoch
        for _ in range(steps):
            assert sample_range(last, step) == sample_range(whole, step)
            step += 1


def test_a_phase_of_steps_begins_an_epoch_anew_if_it_cuts_the_data_in_another_way() -> None:
    spec = PhaseSpec(1, 20, 2, 2, 1, True, False, steps=2)
    last = segment(data_len=20, end_step=3, end_epoch=0)
    assert data_after(last) == (0, 12)
    assert epochs_begun(last) == 1
    assert data_before(spec, last) == (0, 12)
    for other in (replace(spec, batch_size=4), replace(spec, data_len=21), replace(spec, steps=0)):
        assert data_before(other, last) == (0, 0)


def test_a_phase_of_steps_without_a_usable_batch_has_no_steps() -> None:
    spec = PhaseSpec(0, 1, 2, 2, 1, True, True, steps=4)
    end = phase_end(spec, segment(data_len=1, drop_last=True, epoch=2, end_step=0))
    assert (end.end_step, end.end_epoch) == (0, 2)
