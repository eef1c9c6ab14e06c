"""The data seams: every `Source` and every `BatchSource` keeps its contract, and a source of one class trains a job."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.line import error, points, prepared, weights
from torch.utils.data import Dataset, TensorDataset

from paceline.data.batch_source import Batch, BatchSource, LocalBatches, SlotKey
from paceline.data.data_spec import open_data
from paceline.data.seeding import preserved, seed_sample
from paceline.data.source import DatasetSource, Source
from paceline.errors import UsageError
from paceline.messages import Grant
from paceline.types import Fence, Segment
from paceline.worker.prefetch import Prefetch

SEGMENT = Segment(0, 0, 0, 0, 4, 1, 32, 2, 4, True, False, 0, "bsp")


class Squares:
    """A dummy source: a function of the position, without data. Draws a random number for each sample."""

    length = 32
    fingerprint = "squares of 0 to 31"

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        return [(torch.full((4,), float(p)), torch.tensor([p * p + float(torch.rand(()))])) for p in positions]


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        return torch.full((3,), float(index)), random.random() + float(np.random.rand())


# ---------------------------------------------------------------- sources


class SourceContract(ABC):
    @abstractmethod
    def make(self) -> Source: ...

    def test_every_source_satisfies_the_protocol(self) -> None:
        assert isinstance(self.make(), Source)

    def test_the_length_and_the_fingerprint_of_a_source_do_not_change(self) -> None:
        first, second = self.make(), self.make()
        assert first.length == second.length > 0
        assert first.fingerprint == second.fingerprint != ""

    def test_samples_come_in_the_order_of_positions(self) -> None:
        source = self.make()
        with preserved():
            one_by_one = []
            for position in (7, 0, 31, 7):
                seed_sample(position)
                one_by_one += list(source.read([position]))
            seed_sample(7)
            first = source.read([7, 0])[0]
        assert str(one_by_one[0]) == str(one_by_one[3]) == str(first)
        assert len({str(sample) for sample in one_by_one}) == 3


class TestDatasetSource(SourceContract):
    def make(self) -> Source:
        return DatasetSource(Rows(), 32)


class TestSquares(SourceContract):
    def make(self) -> Source:
        return Squares()


def test_a_data_set_is_named_by_class_and_length() -> None:
    assert DatasetSource(points(8), 8).fingerprint != DatasetSource(points(9), 9).fingerprint
    assert "TensorDataset" in DatasetSource(points(8), 8).fingerprint


def test_data_that_is_neither_a_source_nor_a_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="has no length"):
        open_data(object(), 4)


# ---------------------------------------------------------------- batch sources


class Numbered:
    """A dummy batch source: the batch of a slot is its number."""

    def prefetch(self, key: SlotKey) -> None:
        pass

    def get(self, key: SlotKey) -> Batch:
        return Batch(torch.tensor([key.step, key.slot]), 1)

    def close(self) -> None:
        pass


class BatchSourceContract(ABC):
    @abstractmethod
    def make(self) -> BatchSource: ...

    def test_a_batch_is_a_function_of_its_slot(self) -> None:
        first, second = self.make(), self.make()
        keys = [SlotKey(SEGMENT, step, slot) for step in range(4) for slot in range(2)]
        batches = [first.get(key) for key in keys]
        for key, batch in reversed(list(zip(keys, batches, strict=True))):
            again = second.get(key)
            assert str(again.content) == str(batch.content)
            assert again.num_samples == batch.num_samples > 0
        assert len({str(batch.content) for batch in batches}) == len(keys)

    def test_a_prefetched_batch_is_the_same_and_draws_no_random_number(self) -> None:
        batches = self.make()
        key = SlotKey(SEGMENT, 1, 1)
        expected = batches.get(key)
        with preserved():
            batches.prefetch(key)
            before = torch.get_rng_state(), random.getstate()
            found = batches.get(key)
            assert torch.equal(torch.get_rng_state(), before[0])
            assert random.getstate() == before[1]
        assert str(found.content) == str(expected.content)

    def test_a_prefetch_for_another_slot_is_dropped(self) -> None:
        batches = self.make()
        expected = batches.get(SlotKey(SEGMENT, 0, 0))
        batches.prefetch(SlotKey(SEGMENT, 2, 1))
        assert str(batches.get(SlotKey(SEGMENT, 0, 0)).content) == str(expected.content)

    def test_a_batch_source_may_be_closed_twice(self) -> None:
        batches = self.make()
        batches.prefetch(SlotKey(SEGMENT, 0, 0))
        batches.close()
        batches.close()


class TestLocalBatches(BatchSourceContract):
    def make(self) -> BatchSource:
        return LocalBatches(open_data(Rows(), 4), 7)


class TestLocalBatchesOfTensors(BatchSourceContract):
    def make(self) -> BatchSource:
        return LocalBatches(open_data(points(), 4), 7)


class TestLocalBatchesOfSquares(BatchSourceContract):
    def make(self) -> BatchSource:
        return LocalBatches(open_data(Squares(), 4), 7)


class TestNumbered(BatchSourceContract):
    def make(self) -> BatchSource:
        return Numbered()


def test_a_worker_takes_batches_of_any_batch_source() -> None:
    prefetch = Prefetch(Numbered(), 7)
    grant = Grant(1, 1, 0, 1, 3, 1, 2, Fence(1, 1), SEGMENT, True)
    with preserved():
        prefetch.prepare(grant)
        assert prefetch.take(grant).content.tolist() == [3, 1]


# ---------------------------------------------------------------- through the seam


def test_a_job_trains_on_a_source_of_one_class() -> None:
    """Embedded; the result equals that of the same samples as a data set."""

    class AsDataset(Dataset[Any]):
        def __len__(self) -> int:
            return Squares.length

        def __getitem__(self, index: int) -> Any:
            return Squares().read([index])[0]

    results = []
    for data in (Squares(), AsDataset()):
        job, model, optimizer = prepared()
        with job:
            for x, y in job.batches(data, 4, slots=2, epochs=2):
                optimizer.zero_grad()
                (error(model, x, y) * 1e-4).backward()
                optimizer.step()
            assert job.step == 8
        results.append(weights(model))
    assert results[0] == results[1]
    assert all(np.isfinite(results[0]))


def test_the_batch_of_a_tensor_data_set_is_indexed_in_one_call() -> None:
    spec = open_data(points(), 4)
    assert isinstance(spec.source, DatasetSource)
    assert isinstance(spec.source.data, TensorDataset)
    assert spec.tensors is not None
    assert open_data(Squares(), 4).tensors is None
