"""Rule 24: prepared slots are keyed, and on any difference the worker prepares the slot itself.

The key has the phase, the fingerprint of the data, the revision of the segment, and the fingerprint of the packages
that prepare. Nothing that a sampler does or fails to do changes a bit of a batch.
Upheld by: `data.data_key.data_key`, `core.sampler.preparing.SamplerCore` (revision and data),
`worker.sampled_batches.SampledBatches`, and `core.sampler.asking.Asking`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kit.samplers import asking, key_of, local, open_data, sampler, segment_of
from torch.utils.data import TensorDataset, default_collate

from paceline.data import fingerprint
from paceline.data.batch_source import SlotKey

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
