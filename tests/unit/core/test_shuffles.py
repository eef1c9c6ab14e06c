from __future__ import annotations

import numpy as np
import pytest

from paceline.core.sampling import Order, num_steps, sample_range
from paceline.core.shuffles import draw, permute, permute_blocks, permute_each, position_of
from paceline.types import Segment


def every(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.int64)


@pytest.mark.parametrize(("n", "block", "window"), [(96, 16, 2), (100, 16, 3), (1, 1, 1), (7, 3, 9), (1000, 7, 4)])
def test_a_shuffle_by_blocks_is_a_permutation_whatever_is_asked_at_once(n: int, block: int, window: int) -> None:
    whole = permute_blocks(every(n), n, block, window, 3, 1)
    assert sorted(whole.tolist()) == list(range(n))
    one_by_one = [int(permute_blocks(np.array([p]), n, block, window, 3, 1)[0]) for p in range(min(n, 100))]
    assert whole.tolist()[:100] == one_by_one
    if n > 50:
        assert whole.tolist() != permute_blocks(every(n), n, block, window, 3, 2).tolist()
        assert whole.tolist() != permute_blocks(every(n), n, block, window, 4, 1).tolist()


def test_a_window_reads_few_blocks() -> None:
    n, block, window = 10_000, 100, 8
    blocks = permute_blocks(every(n), n, block, window, 0, 0) // block
    for start in range(0, n, block * window):
        assert len(set(blocks[start : start + block * window].tolist())) <= window + 1


def test_a_shuffle_by_blocks_of_sorted_data_leaves_little_correlation() -> None:
    n = 100_000
    order = permute_blocks(every(n), n, 1000, 8, 0, 0)
    assert abs(np.corrcoef(every(n), order)[0, 1]) < 0.25
    full = permute(every(n), n, 0, 0)
    assert abs(np.corrcoef(every(n), full)[0, 1]) < 0.02


@pytest.mark.parametrize("n", [1, 2, 3, 17, 1000])
def test_the_position_of_a_sample_is_the_inverse(n: int) -> None:
    order = permute(every(n), n, 9, 2)
    assert [position_of(int(sample), n, 9, 2) for sample in order[:50]] == list(range(min(n, 50)))


def test_each_group_has_an_order_of_its_own() -> None:
    offsets = np.tile(every(50), 3)
    groups = np.repeat(every(3), 50)
    mixed = permute_each(offsets, 50, groups, 1, 0, "x").reshape(3, 50)
    assert [sorted(row) for row in mixed.tolist()] == [list(range(50))] * 3
    assert len({tuple(row) for row in mixed.tolist()}) == 3


def test_samples_are_drawn_as_often_as_their_weights_say() -> None:
    weights = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    drawn = draw(every(80_000), np.cumsum(weights), 5, 0)
    share = np.bincount(drawn, minlength=6) / 80_000
    assert np.abs(share - weights / 8).max() < 0.01
    assert share[[0, 3, 5]].tolist() == [0, 0, 0]
    assert drawn[:10].tolist() == draw(every(10), np.cumsum(weights), 5, 0).tolist()
    assert drawn[:100].tolist() != draw(every(100), np.cumsum(weights), 5, 1).tolist()


@pytest.mark.parametrize("changes", [{"block_size": 16, "block_window": 2}, {"weights": "abc"}, {}])
def test_slots_read_the_order_of_their_epoch(changes: dict[str, int | str]) -> None:
    """Also in the middle of an epoch, with another number of slots."""
    plan = Segment(0, 0, 0, 0, 12, 1, 96, 2, 4, True, False, 0, "bsp", **changes)  # type: ignore[arg-type]
    upto = np.cumsum(np.ones(96))
    order = Order(7, upto)
    samples = [s for t in range(num_steps(plan)) for i in range(2) for s in order.samples(plan, t, i).tolist()]
    assert len(samples) == 96
    assert (sorted(samples) == list(range(96))) is ("weights" not in changes)
    later = Segment(3, 0, 0, 24, 9, 1, 96, 3, 4, True, False, 0, "bsp", **changes)  # type: ignore[arg-type]
    steps = range(3, 3 + num_steps(later))
    rest = [
        s
        for t in steps
        for i in range(sample_range(later, t).slots)
        for s in Order(7, upto).samples(later, t, i).tolist()
    ]
    assert samples[24:] == rest
