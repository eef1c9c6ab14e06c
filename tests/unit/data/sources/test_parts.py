from __future__ import annotations

import numpy as np
import pytest

import paceline
from paceline.data.sources.arrays import ColumnArrays
from paceline.errors import UsageError


def source(n: int) -> ColumnArrays:
    return paceline.data.arrays({"k": np.arange(n)})


@pytest.mark.parametrize("n", [10, 999, 1000, 1001, 12_345])
def test_parts_have_no_sample_in_common_and_leave_none_out(n: int) -> None:
    parts = paceline.data.split(source(n), (0.7, 0.2, 0.1), seed=7)
    found = [part.places(np.arange(part.length)).tolist() for part in parts]
    assert sorted(place for places in found for place in places) == list(range(n))
    assert [abs(part.length - share * n) <= 1 + n / 1000 for part, share in zip(parts, (0.7, 0.2, 0.1), strict=True)]
    assert parts[1].read([0])[0]["k"] == found[1][0]
    again = paceline.data.split(source(n), (0.7, 0.2, 0.1), seed=7)
    assert again[2].places(np.arange(again[2].length)).tolist() == found[2]
    other = paceline.data.split(source(n), (0.7, 0.2, 0.1), seed=8)
    assert other[0].places(np.arange(other[0].length)).tolist() != found[0]


def test_a_part_has_its_share_everywhere_and_keeps_neighbours_near() -> None:
    _, test = paceline.data.split(source(100_000), (0.9, 0.1), seed=0)
    places = test.places(np.arange(test.length))
    assert np.bincount(places // 10_000).tolist() == [1000] * 10
    assert np.abs(np.diff(places)).max() < 2000


def test_the_parts_of_a_table_make_batches_at_once() -> None:
    part, _ = paceline.data.split(source(2000), (0.5, 0.5), seed=1)
    batch = part.read_batch(np.array([3, 999]))  # type: ignore[attr-defined]
    assert batch["k"].tolist() == [row["k"] for row in part.read([3, 999])]


def test_the_fingerprint_of_a_part_has_its_share_and_its_seed() -> None:
    texts = {p.fingerprint for seed in (1, 2) for p in paceline.data.split(source(20), (0.5, 0.5), seed)}
    assert len(texts) == 4


@pytest.mark.parametrize("fractions", [(0.5, 0.6), (), (0.5, 0.0), (0.5, -0.1)])
def test_impossible_fractions_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="fractions must be"):
        paceline.data.split(source(20), fractions, seed=0)


def test_a_part_without_samples_is_refused() -> None:
    with pytest.raises(UsageError, match="is none: use a larger fraction"):
        paceline.data.split(source(4), (0.95, 0.05), seed=0)
