"""Early updates: they count only if the commit is the expected one, and no reader sees them before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
import torch
from tests.kit.server import BLOCKS, commit, contents, model

from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.tensors import bytes_of
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, Commit, Fence, Kind

TRAINED = [b.index for b in BLOCKS if b.kind == Kind.PARAMETER]
SPEC = model()


def gradients(seed: int) -> dict[int, object]:
    generator = torch.Generator().manual_seed(seed)
    return {
        i: bytes_of(torch.randn(BLOCKS[i].numel, generator=generator).to(getattr(torch, BLOCKS[i].dtype)))
        for i in TRAINED
    }


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[ChunkUpdate]:
    """The chunks that were updated at a commit, not early."""
    found: list[ChunkUpdate] = []
    run = ChunkUpdate.run

    def noted(self: ChunkUpdate, *args: Any) -> None:
        found.append(self)
        run(self, *args)

    monkeypatch.setattr(ChunkUpdate, "run", noted)
    return found


@pytest.fixture
def store() -> Iterator[DenseStore]:
    """A store after two steps."""
    made = DenseStore()
    made.open(SPEC, BLOCKS)
    everything = {b.index: bytes_of(torch.zeros(b.numel).to(getattr(torch, b.dtype))) for b in BLOCKS}
    key = SumKey(INIT_STEP, None)
    made.sums.add(key, SealedAttempt(1.0, frozenset(), everything))
    made.apply(key, commit(SPEC, 0, INIT_STEP))
    for step in range(2):
        add(made, step, gradients(step))
        made.apply(SumKey(step, None), commit(SPEC, step + 1, step))
    yield made
    made.close()


def add(store: DenseStore, step: int, payloads: Mapping[int, object], fence: int = 1, rev: int = 0) -> None:
    revs = dict.fromkeys(payloads, rev)
    store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), payloads, 0, Fence(1, fence), revs))


def expect(store: DenseStore, step: int, payloads: Mapping[int, object], fence: int = 1) -> None:
    store.sums.anticipate(SumKey(step, None), 0, Fence(1, fence), 1.0, {i: (0, p) for i, p in payloads.items()})


def ready(store: DenseStore, step: int) -> None:
    assert not store.update_early(SumKey(step, None), ()), "the store has only guessed the hyper-parameters"


def slower(version: int, step: int) -> Commit:
    """Return a commit with another learning rate."""
    hyper = tuple({**group, "lr": 0.05} for group in SPEC.optimizer.hyper)
    return msgspec.structs.replace(commit(SPEC, version, step), hyper=hyper)


def test_a_complete_sum_is_updated_early_and_not_again_at_the_commit(
    store: DenseStore, updates: list[ChunkUpdate]
) -> None:
    add(store, 2, gradients(2))
    before = contents([(store, [])])
    ready(store, 2)
    assert contents([(store, [])]) == before, "the early update is not readable before its commit"
    store.apply(SumKey(2, None), commit(SPEC, 3, 2))
    assert {u.chunk.dtype for u in updates} <= {
        torch.bfloat16
    }  # torch does not round the elements of these chunks equally
    assert contents([(store, [])]) != before


def test_a_sum_of_unsealed_gradients_is_updated_early(store: DenseStore, updates: list[ChunkUpdate]) -> None:
    expect(store, 2, gradients(2))
    add(store, 2, gradients(2))
    store.apply(SumKey(2, None), commit(SPEC, 3, 2))
    assert not updates


def test_a_chunk_whose_gradient_changed_is_updated_again(store: DenseStore, updates: list[ChunkUpdate]) -> None:
    expect(store, 2, gradients(2))
    changed = gradients(2) | {TRAINED[0]: gradients(3)[TRAINED[0]]}
    revs = dict.fromkeys(changed, 0) | {TRAINED[0]: 1}
    store.sums.add(SumKey(2, None), SealedAttempt(1.0, frozenset(), changed, slot=0, fence=Fence(1, 1), revs=revs))
    store.apply(SumKey(2, None), commit(SPEC, 3, 2))
    assert len(updates) == 1


def test_an_early_update_of_another_attempt_does_not_count(store: DenseStore, updates: list[ChunkUpdate]) -> None:
    expect(store, 2, gradients(2), fence=1)
    add(store, 2, gradients(3), fence=2)
    store.apply(SumKey(2, None), commit(SPEC, 3, 2))
    assert len(updates) == len({u.chunk for u in updates}) > 0


def test_wrong_guesses_of_hyper_parameters_make_early_updates_rarer(
    store: DenseStore, updates: list[ChunkUpdate]
) -> None:
    tried = []
    early = store._early
    for step in range(2, 12):
        add(store, step, gradients(step))
        ready(store, step)
        tried.append(len(early._made) > 0)
        store.apply(SumKey(step, None), slower(step + 1, step) if step % 2 else commit(SPEC, step + 1, step))
    assert tried[:2] == [True, True]  # the first guess was right, the second was wrong
    assert sum(tried) < 6


def test_an_early_update_does_not_change_a_frozen_version(store: DenseStore) -> None:
    store.checkpoints.save(2)
    frozen = store.checkpoints.frozen
    assert frozen is not None
    before = {i: (s.value.clone(), {k: t.clone() for k, t in s.state.items()}) for i, s in frozen.blocks.items()}
    store.checkpoints.thaw()  # the save is given up, but the writer still reads the version
    for step in range(2, 6):
        add(store, step, gradients(step))
        ready(store, step)
        store.apply(SumKey(step, None), commit(SPEC, step + 1, step))
    for index, (value, state) in before.items():
        assert torch.equal(frozen.blocks[index].value, value)
        assert all(torch.equal(frozen.blocks[index].state[k], t) for k, t in state.items())


def test_an_early_update_of_a_dropped_step_does_not_count(store: DenseStore, updates: list[ChunkUpdate]) -> None:
    add(store, 2, gradients(2))
    ready(store, 2)
    store.sums.drop(SumKey(2, None))
    add(store, 3, gradients(3))
    store.apply(SumKey(3, None), commit(SPEC, 3, 3))
    assert len(updates) == len({u.chunk for u in updates}) > 0
