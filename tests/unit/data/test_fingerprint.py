"""The fingerprint of a data set: the samples that follow from the seed, read at a small cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from paceline.data.data_spec import open_data
from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.types import DataFingerprint

SEED = 5


class Made(Dataset[Any]):
    """Each sample is what a function makes of its position."""

    def __init__(self, make: Callable[[int], Any], length: int = 100) -> None:
        self.make, self.length = make, length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        self.read.append(position)
        return self.make(position)


def _maker(data: Any, loader_workers: int = 0) -> BatchMaker:
    return BatchMaker(open_data(data, 4, loader_workers=loader_workers), SEED)


def _of(data: Any, **options: Any) -> DataFingerprint:
    found = Fingerprints(SEED, **options).of(_maker(data))
    assert found is not None
    return found


def _noisy(position: int) -> tuple[torch.Tensor, float, float]:
    return position + torch.rand(2), random.random(), float(np.random.rand())


def test_samples_all_over_the_data_are_read_twice() -> None:
    data = Made(lambda position: position)
    found = _of(data)
    assert sorted(position for position, _ in found.samples) == [0, 14, 28, 42, 56, 70, 84, 99]
    assert sorted(data.read) == sorted([position for position, _ in found.samples] * 2)
    assert (found.length, found.source) == (100, "")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_small_data_are_read_in_full(length: int) -> None:
    assert sorted(p for p, _ in _of(Made(lambda p: p, length)).samples) == list(range(length))


def test_a_random_transform_is_seeded_and_leaves_the_generators_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _of(Made(_noisy))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    assert _of(Made(_noisy)) == first
    assert len(first.samples) == 8


def test_another_split_has_other_samples() -> None:
    data = TensorDataset(torch.randn(100, 3))
    order = torch.randperm(100).tolist()
    assert _of(Subset(data, order)).samples != _of(Subset(data, order[::-1])).samples
    assert _of(Subset(data, order)) == _of(Subset(data, list(order)))


def test_samples_that_do_not_follow_from_the_seed_are_left_out() -> None:
    count = itertools.count()
    found = _of(Made(lambda position: next(count) if position < 50 else position))
    assert sorted(p for p, _ in found.samples) == [56, 70, 84, 99]


def test_samples_that_cannot_be_read_are_left_out() -> None:
    def make(position: int) -> int:
        if position == 0:
            raise OSError("a damaged file")
        return position

    assert sorted(p for p, _ in _of(Made(make)).samples) == [14, 28, 42, 56, 70, 84, 99]


def test_of_slow_data_only_two_samples_are_read() -> None:
    times = itertools.count(0.0, 0.6)
    data = Made(lambda position: position)
    assert len(_of(data, clock=lambda: next(times)).samples) == 2


def test_a_data_set_that_is_used_again_is_not_read_again() -> None:
    fingerprints, data = Fingerprints(SEED), Made(lambda position: position)
    assert fingerprints.of(_maker(data)) is not None
    assert fingerprints.of(_maker(data)) is None
    assert fingerprints.of(_maker([1, 2, 3])) is not None
    assert fingerprints.of(_maker(Made(lambda position: position))) is not None, "another object"


def test_a_data_set_is_not_kept_alive() -> None:
    fingerprints = Fingerprints(SEED)
    for _ in range(5):
        assert fingerprints.of(_maker(Made(lambda position: position))) is not None
    assert len(fingerprints._known) <= 2


def test_samples_are_read_in_the_loader_processes() -> None:
    """A data set may open its files at the first sample: then a process that was forked later would share them."""

    def make(position: int) -> int:
        if position == 0:
            raise OSError("a damaged file")
        return position

    data = Made(make)
    maker = _maker(data, loader_workers=1)
    found = Fingerprints(SEED).of(maker)
    try:
        assert found is not None
        assert found.samples == _of(Made(make)).samples
        assert data.read == [], "this process has read samples"
        assert maker.read([(1, 5), (2, 6)]) == [5, 6], "the sample that cannot be read has left something behind"
    finally:
        maker.close()


def test_a_source_is_named_by_its_own_fingerprint() -> None:
    class Squares:
        length, fingerprint = 32, "squares"

        def read(self, positions: Sequence[int]) -> Sequence[Any]:
            return [p * p for p in positions]

    assert _of(Squares()).source == "squares"


class OwnGenerator(Dataset[Any]):
    """Draws from a generator of its own, which nobody seeds for each sample."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, position: int) -> float:
        return position + float(self.rng.random())


@pytest.mark.parametrize("loader_workers", [0, 1, 2])
def test_a_data_set_with_a_generator_of_its_own_is_named(loader_workers: int) -> None:
    """Two loader processes have copies of the generator, which draw the same numbers."""
    maker = _maker(OwnGenerator(), loader_workers)
    try:
        found = Fingerprints(SEED).of(maker)
    finally:
        maker.close()
    assert found is not None
    assert (found.samples, found.unstable) == ((), "sample 22 of OwnGenerator")


def test_samples_that_follow_from_the_seed_or_cannot_be_read_are_not_unstable() -> None:
    def broken(position: int) -> int:
        raise OSError("a damaged file")

    assert [_of(Made(make)).unstable for make in (_noisy, broken)] == ["", ""]
