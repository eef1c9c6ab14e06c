"""Rule 24: prepared slots are keyed, and on any difference the worker prepares the slot itself.

The key has the phase, the fingerprint of the data, the revision of the segment, and the fingerprint of the packages
that prepare. Nothing that a sampler does or fails to do changes a bit of a batch. Bad records are facts of the log: a
sampler hands over no slot that has one, so that the worker finds it.
Upheld by: `data.data_key.data_key`, `core.sampler.preparing.SamplerCore` (revision and data),
`worker.sampled_batches.SampledBatches`, `sampler.job.Preparation`, and `core.sampler.asking.Asking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from tests.kit.samplers import SEED, asking, key_of, local, open_data, sampler, segment_of
from torch.utils.data import TensorDataset, default_collate

from paceline.data import fingerprint
from paceline.data.batch_source import LocalBatches, SlotKey
from paceline.data.choice import Choice, SampleOrder
from paceline.data.data_key import data_key
from paceline.data.data_spec import DataSpec
from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.errors import BadRecordError

X = torch.arange(96.0).view(24, 4)


def rows(x: torch.Tensor = X) -> TensorDataset:
    return TensorDataset(x)


def mine(samples: list[Any]) -> Any:
    return default_collate(samples)


def other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_platform", lambda: "another torch")


SPEC = open_data(rows(), 4)
OTHERS = {
    "phase": lambda: key_of(SPEC, phase=1),
    "seed": lambda: key_of(SPEC, seed=8),
    "content": lambda: key_of(open_data(rows(X + 1), 4)),
    "length": lambda: key_of(open_data(rows(X[:20]), 4)),
    "batch size": lambda: key_of(open_data(rows(), 3)),
    "order": lambda: key_of(open_data(rows(), 4, shuffle=False)),
    "collate": lambda: key_of(open_data(rows(), 4, collate_fn=mine)),
}


def test_equal_data_have_equal_keys() -> None:
    assert key_of(SPEC) == key_of(open_data(rows(X.clone()), 4)) == key_of(open_data(rows(), 4, loader_workers=0))


@pytest.mark.parametrize("what", OTHERS)
def test_every_part_of_the_key_counts(what: str) -> None:
    assert OTHERS[what]() != key_of(SPEC)


def test_the_packages_that_prepare_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(SPEC)
    other_versions(monkeypatch)
    assert key_of(SPEC) != before


def test_the_number_of_threads_counts() -> None:
    before, threads = key_of(SPEC), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key_of(SPEC) != before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("what", ["content", "phase"])
def test_a_worker_prepares_what_a_sampler_has_by_another_key(what: str) -> None:
    with sampler(SPEC, data=OTHERS[what]()) as service, asking(SPEC, service) as (batches, session):
        key = SlotKey(segment_of(SPEC), 0, 1)
        batches.prefetch(key)
        assert torch.equal(batches.get(key).content[0], local(SPEC, key)[0])
        assert service.desk.work.prepared == 0
        assert "a sampler has other data than the workers" in session.warned[0]


def test_a_worker_prepares_what_a_sampler_has_by_a_newer_revision() -> None:
    with sampler(SPEC) as service, asking(SPEC, service) as (batches, session):
        newer, older = segment_of(SPEC, revision=1), segment_of(SPEC)
        for segment in (newer, older, newer):
            key = SlotKey(segment, 1, 0)
            batches.prefetch(key)
            assert torch.equal(batches.get(key).content[0], local(SPEC, key)[0])
        assert service.desk.work.served >= 2
        assert not session.warned


class Holey:
    """Rows, some of which are damaged."""

    length = 24
    fingerprint = "holey"
    bad = (2, 5, 6, 7)

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        for position in positions:
            if position in self.bad:
                raise BadRecordError(f"row {position}")
        return [X[position] for position in positions]


SKIP = Choice(on_bad_record="skip", max_bad_records=10)


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_a_worker_finds_the_bad_records_of_slots_that_a_sampler_prepares(loader_workers: int) -> None:
    spec = open_data(Holey(), 3, shuffle=False, choice=SKIP)
    segment = segment_of(spec)
    mine = LocalBatches(spec, SEED)
    there = replace(spec, loader_workers=loader_workers)
    with sampler(there, data=key_of(spec)) as service, asking(spec, service) as (batches, session):
        found = []
        for key in (SlotKey(segment, step, slot) for step in range(segment.end_step) for slot in range(2)):
            batches.prefetch(key)
            batch, expected = batches.get(key), mine.get(key)
            assert batch[1:] == expected[1:]
            assert batch.content is expected.content is None or torch.equal(batch.content, expected.content)
            found += [record.first for record in batch.bad]
        assert found == [2, 5, 6, 7]
        assert 0 < service.desk.work.served <= 5, "three of eight slots have bad records"
        assert not session.warned


def by_weight(*weights: float) -> DataSpec:
    return open_data(rows(X[:4]), 1, choice=Choice(weights=weights))


def test_the_choice_of_samples_counts() -> None:
    specs = [
        open_data(rows(), 3, choice=Choice(fraction=0.5, seed=1)),
        open_data(rows(), 3, choice=Choice(fraction=0.5, seed=2)),
        by_weight(1, 2, 3, 4),
        by_weight(1, 2, 4, 3),
        open_data(rows(X[:4]), 1),
    ]
    assert len({key_of(spec) for spec in specs}) == 5
    assert key_of(by_weight(1, 2, 3, 4)) == key_of(specs[2])


def test_the_files_and_the_blocks_count() -> None:
    found = Fingerprints(SEED).find(BatchMaker(SPEC, SEED))[0]
    keys = {data_key(0, SEED, SPEC, msgspec.structs.replace(found, files=(("a.csv", d),))) for d in ("1", "2")}
    blocks = [replace(SPEC, order=SampleOrder(True, size, window)) for size, window in ((4, 2), (4, 3), (6, 2))]
    assert len(keys | {data_key(0, SEED, spec, found) for spec in (SPEC, *blocks)}) == 6


@pytest.mark.parametrize(
    "choice", [Choice(fraction=0.5, seed=SEED), Choice(weights=range(24))], ids=["part", "weights"]
)
def test_a_sampler_takes_the_positions_that_the_worker_takes(choice: Choice) -> None:
    spec = open_data(rows(), 3, choice=choice)
    with sampler(spec) as service, asking(spec, service) as (batches, _):
        for key in (SlotKey(segment_of(spec), step, slot) for step in range(2) for slot in range(2)):
            batches.prefetch(key)
            assert torch.equal(batches.get(key).content[0], local(spec, key)[0])
        assert service.desk.work.served >= 1


def test_a_sampler_takes_the_blocks_that_the_worker_takes() -> None:
    spec = replace(SPEC, order=SampleOrder(True, 6, 2))
    with sampler(spec) as service, asking(spec, service) as (batches, _):
        key = SlotKey(segment_of(spec), 1, 1)
        assert torch.equal(batches.get(key).content[0], local(spec, key)[0])
        assert not torch.equal(batches.get(key).content[0], local(SPEC, SlotKey(segment_of(SPEC), 1, 1))[0])
        assert service.desk.work.served >= 1
