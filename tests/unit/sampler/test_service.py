"""A sampler hands prepared batches to a worker: the same bits, in memory of the worker's own."""

from __future__ import annotations

import threading
from typing import Any

import torch
from msgspec.structs import replace
from tests.kit.samplers import asking, key_of, local, open_data, sampler, segment_of
from torch.utils.data import Dataset

from paceline.data.batch_source import SlotKey
from paceline.data.seeding import seed_all


class Nested(Dataset[Any]):
    """Nested samples. Without random numbers: the sampler of these tests shares the generators of the process."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return {
            "x": torch.arange(12.0).view(3, 4) * i,
            "about": (i, f"row {i}", i / 3),
            "flags": [i % 2 == 0, torch.tensor(i)],
        }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype and one.stride() == other.stride()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def test_a_sampler_gives_the_bits_that_the_worker_would_make() -> None:
    spec = open_data(Nested(), 4)
    segment = segment_of(spec)
    with sampler(spec) as service, asking(spec, service) as (batches, session):
        for step in range(segment.end_step):
            for slot in range(2):
                key = SlotKey(segment, step, slot)
                batches.prefetch(key)
                content, num_samples, _ = batches.get(key)
                assert same(content, local(spec, key))
                assert num_samples == 4
                content["x"].add_(1.0)  # the batch belongs to the script
        assert service.desk.work.served == 10
        assert not session.warned


def test_two_samplers_share_the_slots() -> None:
    spec = open_data(Nested(), 4)
    segment = segment_of(spec)
    with sampler(spec, "sampler-0") as one, sampler(spec, "sampler-1") as two, asking(spec, one, two) as (batches, _):
        names = ("sampler-0", "sampler-1")
        for service in (one, two):
            service.desk._core.roster(names)  # type: ignore[union-attr]
        for step in range(segment.end_step):
            for slot in range(2):
                key = SlotKey(segment, step, slot)
                assert same(batches.get(key).content, local(spec, key))
        assert {one.desk.work.served, two.desk.work.served} == {5}


class Raising(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> Any:
        if threading.current_thread().name == "script":
            raise OSError("the disk of the sampler is broken")
        return torch.full((2,), i)


def test_what_raises_in_a_sampler_is_prepared_by_the_worker() -> None:
    spec = open_data(Raising(), 4)
    with sampler(spec) as service, asking(spec, service) as (batches, _):
        key = SlotKey(segment_of(spec), 0, 0)
        batches.prefetch(key)
        assert torch.equal(batches.get(key).content, local(spec, key))


def test_a_worker_that_is_in_the_next_loop_already_prepares_its_slots_without_a_warning() -> None:
    spec = open_data(Nested(), 4)
    with sampler(spec) as service, asking(spec, service) as (batches, session):
        key = SlotKey(replace(segment_of(spec), phase=1), 0, 0)
        batches.open(key_of(spec, phase=1))
        assert same(batches.get(key).content, local(spec, key))
        assert service.desk.work.prepared == 0
        assert not session.warned


def as_set(samples: list[Any]) -> Any:
    return {int(sample[0]) for sample in samples}


def test_a_batch_that_cannot_be_expressed_is_prepared_by_the_worker_and_said_once() -> None:
    spec = open_data([torch.full((1,), i) for i in range(16)], 4, collate_fn=as_set)
    segment = segment_of(spec)
    with sampler(spec) as service, asking(spec, service) as (batches, session):
        for slot in range(2):
            key = SlotKey(segment, 0, slot)
            batches.prefetch(key)
            assert batches.get(key).content == local(spec, key)
        (warned,) = session.warned
        assert "it contains a builtins.set" in warned
        assert "loader_workers=" in warned


def test_a_worker_whose_sampler_is_gone_prepares_the_batch() -> None:
    spec = open_data(Nested(), 4)
    key = SlotKey(segment_of(spec), 0, 0)
    with sampler(spec) as service, asking(spec, service) as (batches, _):
        batches.prefetch(key)
        service.close()
        seed_all(1)
        content, drawn = batches.get(key).content, torch.rand(1)
        seed_all(1)
        assert torch.equal(drawn, torch.rand(1)), "a batch that was prefetched draws no random number"
        assert same(content, local(spec, key))
