"""Batches ahead in loader processes: the bits of this process, and no wait for what was guessed right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, default_collate, get_worker_info

from paceline.data.batch_source import LocalBatches, SlotKey
from paceline.data.choice import Choice
from paceline.data.data_spec import open_data
from paceline.errors import BadRecordError, UsageError
from paceline.types import Segment

SEGMENT = Segment(0, 0, 0, 0, 12, 1, 48, 2, 2, True, False, 0, "bsp")


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[torch.Tensor, float, bool]:
        noise = random.random() + float(np.random.rand())
        return torch.randn(3) + i, noise, get_worker_info() is not None


def noisy(samples: list[Any]) -> Any:
    x, noise, inside = default_collate(samples)
    return x + torch.rand(1), noise, inside


def keys(step: int, slots: tuple[int, ...] = (0, 1)) -> list[SlotKey]:
    return [SlotKey(SEGMENT, step, slot) for slot in slots]


@pytest.fixture(scope="module")
def expected() -> dict[SlotKey, Any]:
    source = LocalBatches(open_data(Drawn(), 2, collate_fn=noisy), 5)
    return {key: source.get(key).content for step in range(12) for key in keys(step)}


@pytest.mark.parametrize("slots", [(0, 1), (1,), (1, 0)])
def test_batches_ahead_have_the_same_bits(slots: tuple[int, ...], expected: dict[SlotKey, Any]) -> None:
    source = LocalBatches(open_data(Drawn(), 2, collate_fn=noisy, loader_workers=2), 5)
    try:
        for step in range(12):
            for key in keys(step, slots):
                source.prefetch(key)
                state = torch.get_rng_state()
                (x, noise, inside), num_samples, _ = source.get(key)
                assert torch.equal(state, torch.get_rng_state())
                assert torch.equal(x, expected[key][0])
                assert torch.equal(noise, expected[key][1])
                assert bool(inside.all())
                assert num_samples == 2
            if step == 5 and len(slots) == 2 and slots[0] == 0:
                assert len(source._begun) + len(source._made) == source.maker.capacity == 4
    finally:
        source.close()


class Holey(Drawn):
    """Some samples are damaged. The others are not shifted in the random numbers that they draw."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, float, bool]:
        if i % 7 == 3:
            raise BadRecordError(f"sample {i}")
        return super().__getitem__(i)


def test_loader_processes_send_the_bad_records_of_whole_slots() -> None:
    choice = Choice(on_bad_record="skip")
    alone = LocalBatches(open_data(Holey(), 2, collate_fn=noisy, choice=choice), 5)
    source = LocalBatches(open_data(Holey(), 2, collate_fn=noisy, loader_workers=2, choice=choice), 5)
    found: list[int] = []
    begun = 0
    try:
        for key in (key for step in range(12) for key in keys(step)):
            begun += key in source._begun or key in source._made
            batch, expected = source.get(key), alone.get(key)
            assert batch[1:] == expected[1:]
            assert batch.num_samples + len(batch.bad) == 2
            if batch.num_samples:
                assert torch.equal(batch.content[0], expected.content[0])
                assert torch.equal(batch.content[1], expected.content[1])
            found += [record.first for record in batch.bad]
    finally:
        source.close()
    assert sorted(found) == list(range(3, 48, 7))
    assert begun == 23, "all but the first were prepared ahead"


def test_the_words_of_a_data_loader_are_taken_over() -> None:
    loader = DataLoader(
        Drawn(), 4, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3, pin_memory=True,
        drop_last=True, collate_fn=noisy, timeout=9,
    )  # fmt: skip
    spec = open_data(loader, None)
    assert (spec.batch_size, spec.shuffle, spec.drop_last, spec.loader_workers) == (4, True, True, 2)
    assert (spec.collate, spec.pin_memory, spec.timeout_s) == (noisy, True, 9)


@pytest.mark.parametrize(
    ("sampler", "remedy"),
    [
        (RandomSampler(Drawn(), num_samples=7), "leave replacement and num_samples out"),
        (RandomSampler(Drawn(), replacement=True), "leave replacement and num_samples out"),
        (SubsetRandomSampler([1, 2]), r"torch\.utils\.data\.Subset"),
        (torch.utils.data.DistributedSampler(Drawn(), 2, 0), "every worker of a job gets its own slots"),
    ],
)
def test_a_sampler_that_decides_what_is_read_is_refused_with_the_remedy(sampler: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        open_data(DataLoader(Drawn(), 4, sampler=sampler), None)
