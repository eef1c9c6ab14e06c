from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kit.line import error, points, prepared, weights

import paceline
from paceline.data.choice import order_of, part_of_data
from paceline.errors import UsageError


def shards() -> Any:
    data = points(96)
    return paceline.data.iterable(lambda k: [data[i] for i in range(12 * k, 12 * k + 12)], counts=[12] * 8)


def seen(data: Any, **options: Any) -> list[float]:
    """The first number of each sample of two epochs, in the order in which a job reads them."""
    job, model, optimizer = prepared()
    found = []
    with job:
        for x, y in job.batches(data, 4, slots=2, epochs=2, **options):
            found += x[:, 0].tolist()
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    assert np.isfinite(weights(model)).all()
    return found


def test_shards_are_shuffled_by_blocks_unless_something_else_is_asked() -> None:
    order = order_of(shards(), True, None)
    assert (order.block_size, order.block_window) == (12, 8)
    assert order_of(shards(), "full", None).block_size == order_of(shards(), False, None).block_size == 0
    by_blocks, full = seen(shards()), seen(shards(), shuffle="full")
    assert sorted(by_blocks) == sorted(full) == sorted(points(96).tensors[0][:, 0].tolist() * 2)
    assert by_blocks != full
    assert seen(points(96)) == full, "the order goes by the number of samples"


def test_a_fraction_is_the_same_in_each_epoch() -> None:
    found = seen(points(96), fraction=0.25)
    assert len(found) == 48
    assert set(found[:24]) == set(found[24:])
    assert len(set(found)) == 24


def test_weights_draw_with_replacement() -> None:
    chances = np.zeros(96)
    chances[[3, 50]] = 1, 2
    found = seen(points(96), weights=chances)
    assert len(found) == 192
    values = points(96).tensors[0][:, 0].tolist()
    assert set(found) == {values[3], values[50]}
    assert 80 < found.count(values[50]) < 180


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"shuffle": "rows"}, "shuffle must be"),
        ({"shuffle": "blocks"}, "needs data in shards"),
        ({"weights": [1.0]}, "weights= has 1 numbers, and the data have 96"),
        ({"weights": [0.0] * 96}, "not all 0"),
        ({"weights": [1.0] * 96, "shuffle": False}, "give one"),
        ({"weights": [1.0] * 96, "fraction": 0.5}, "give weights of 0"),
        ({"fraction": 0.0}, "fraction must be"),
        ({"fraction": 1.5}, "fraction must be"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        seen(points(96), **options)


def test_the_part_of_a_fraction_follows_from_the_seed() -> None:
    data = paceline.data.arrays({"k": np.arange(100)})
    places = [part_of_data(data, 0.3, seed, None).places(range(30)).tolist() for seed in (1, 1, 2)]
    assert places[0] == places[1] != places[2]
