"""The contract of `BlockStore`: what a server's core relies on, tested on the dense store and on the simulator's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.kit.server import BLOCKS, commit, model

from paceline.blocks.chunks import LentFrame
from paceline.blocks.tensors import bytes_of, piece_of, tensor_of
from paceline.core.server.block_store import BlockStore, SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.sim.disk import Disk
from paceline.sim.symbols import Gradient, Reads, SymbolStore, mark
from paceline.types import INIT_STEP, Fence, Kind

SPEC = model()
ALL = [b.index for b in BLOCKS]
TRAINED = [b.index for b in BLOCKS if b.kind == Kind.PARAMETER]


class Kit(ABC):
    """One kind of store: how to make it, its input, and how to compare its output."""

    @abstractmethod
    def make(self) -> BlockStore: ...

    @abstractmethod
    def attempt(self, step: int, blocks: Sequence[int], fence: Fence) -> SealedAttempt: ...

    @abstractmethod
    def content(self, block: int, payload: object) -> object: ...

    def opened(self, blocks: Sequence[int] = ALL) -> BlockStore:
        store = self.make()
        store.open(SPEC, [BLOCKS[i] for i in blocks])
        return store

    def commit(self, store: BlockStore, version: int, blocks: Sequence[int] = ALL) -> None:
        """Sum and apply one slot."""
        step = INIT_STEP if version == 0 else version - 1
        key = SumKey(step, None)
        mine = blocks if version == 0 else [i for i in blocks if i in TRAINED]
        store.sums.add(key, self.attempt(step, mine, Fence(1, version + 1)))
        store.update_early(key, SPEC.optimizer.hyper)
        store.apply(key, commit(SPEC, version, step))

    def read(self, store: BlockStore, version: int, have: int = -1) -> dict[int, object]:
        frames, payload = store.versions.read(version, have, None)
        return {f.block: self.content(f.block, p) for f, p in zip(frames, payload, strict=True)}


class DenseKit(Kit):
    def make(self) -> BlockStore:
        return DenseStore()

    def attempt(self, step: int, blocks: Sequence[int], fence: Fence) -> SealedAttempt:
        payloads = {}
        for index in blocks:
            value = torch.randn(
                BLOCKS[index].numel, generator=torch.Generator().manual_seed(1000 * step + index + 2000)
            )
            payloads[index] = bytes_of(value.to(getattr(torch, BLOCKS[index].dtype)))
        return SealedAttempt(1.0, frozenset(), payloads, 0, fence, dict.fromkeys(blocks, 0))

    def content(self, block: int, payload: object) -> object:
        assert isinstance(payload, LentFrame)
        flat = tensor_of(payload.frame, BLOCKS[block].dtype)
        return [bytes(bytes_of(piece_of(flat, piece))) for piece in BLOCKS[block].pieces]  # without the padding


class _Silent:
    """An observer of symbols that ignores all events."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


class SymbolKit(Kit):
    def make(self) -> BlockStore:
        return SymbolStore(_Silent(), Disk(), "server-0", lambda: (0, 1))

    def attempt(self, step: int, blocks: Sequence[int], fence: Fence) -> SealedAttempt:
        payloads = {i: Gradient(step, 0, fence, i, 0, Reads(0, (), ())) for i in blocks}
        return SealedAttempt(1.0, frozenset({mark(step, 0, fence)}), payloads, 0, fence, dict.fromkeys(blocks, 0))

    def content(self, block: int, payload: object) -> object:
        return payload


@pytest.fixture(params=[DenseKit, SymbolKit])
def kit(request: pytest.FixtureRequest) -> Kit:
    made: Kit = request.param()
    return made


def test_a_reader_gets_the_blocks_that_changed(kit: Kit) -> None:
    store = kit.opened()
    kit.commit(store, 0)
    assert sorted(kit.read(store, 0)) == ALL
    first = kit.read(store, 0)
    kit.commit(store, 1)
    changed = kit.read(store, 1, have=0).keys()
    assert changed >= set(TRAINED)
    assert changed.isdisjoint(b.index for b in BLOCKS if b.kind == Kind.FROZEN)
    assert all(kit.read(store, 1)[i] != first[i] for i in TRAINED)
    assert kit.read(store, 1, have=1) == {}


def test_a_kept_version_stays_readable(kit: Kit) -> None:
    store = kit.opened()
    kit.commit(store, 0)
    before = kit.read(store, 0)
    store.versions.keep(0)
    for version in (1, 2, 3):
        kit.commit(store, version)
    assert kit.read(store, 0) == before
    store.versions.release(0)
    store.versions.release(17)


def test_early_work_changes_no_result(kit: Kit) -> None:
    plain, told = kit.opened(), kit.opened()
    for store in (plain, told):
        kit.commit(store, 0)
    key, attempt = SumKey(0, None), kit.attempt(0, TRAINED, Fence(1, 2))
    told.sums.anticipate(key, 0, Fence(1, 2), 1.0, {i: (0, p) for i, p in attempt.payloads.items()})
    told.sums.anticipate(SumKey(5, None), 0, Fence(1, 9), 1.0, {i: (0, p) for i, p in attempt.payloads.items()})
    told.sums.drop(SumKey(5, None))
    for store in (plain, told):
        kit.commit(store, 1)
    assert kit.read(told, 1) == kit.read(plain, 1)


def test_the_next_version_is_readable_early_with_the_bits_of_its_commit(kit: Kit) -> None:
    store, key, hyper = kit.opened(), SumKey(1, None), SPEC.optimizer.hyper
    for version in range(2):
        kit.commit(store, version)
    before = kit.read(store, 1)
    store.sums.add(key, kit.attempt(1, TRAINED, Fence(1, 3)))
    assert not store.update_early(key, ()), "the hyper-parameters are not known"
    assert store.versions.ahead == -1
    assert store.update_early(key, hyper)
    assert store.versions.ahead == 2
    early, changed = kit.read(store, 2), kit.read(store, 2, have=1)
    assert kit.read(store, 1) == before != early
    store.apply(key, commit(SPEC, 2, 1))
    assert (kit.read(store, 2), kit.read(store, 2, have=1)) == (early, changed)
    assert store.versions.ahead == -1


def test_the_next_version_is_not_readable_after_its_sum_is_dropped(kit: Kit) -> None:
    store, key = kit.opened(), SumKey(0, None)
    kit.commit(store, 0)
    store.sums.add(key, kit.attempt(0, TRAINED, Fence(1, 2)))
    assert store.update_early(key, SPEC.optimizer.hyper)
    store.sums.drop(key)
    assert store.versions.ahead == -1


def test_a_backup_makes_the_same_version_of_an_exported_sum(kit: Kit) -> None:
    primary, backup = kit.opened(), kit.opened()
    for version in range(3):
        step = INIT_STEP if version == 0 else version - 1
        key = SumKey(step, None)
        primary.sums.add(key, kit.attempt(step, ALL if version == 0 else TRAINED, Fence(1, version + 1)))
        for part in (ALL[::2], ALL[1::2]):
            meta, frames, payload = primary.sums.export(key, part)
            sent = [p.frame if isinstance(p, LentFrame) else p for p in payload]
            backup.sums.install(key, meta, frames, sent)
        for store in (primary, backup):
            store.apply(key, commit(SPEC, version, step))
        assert kit.read(backup, version) == kit.read(primary, version)


def test_a_copy_has_the_current_version(kit: Kit) -> None:
    primary, copy = kit.opened(), kit.opened()
    for version in range(3):
        kit.commit(primary, version)
    frames, payload = primary.copies.copy_out(ALL)
    sent = [p.frame if isinstance(p, LentFrame) else p for p in payload]
    for half in (slice(None, 3), slice(3, None)):
        copy.copies.copy_in(2, frames[half], sent[half])
    assert kit.read(copy, 2) == kit.read(primary, 2)
    for store in (primary, copy):
        kit.commit(store, 3)
    assert kit.read(copy, 3) == kit.read(primary, 3), "the copy has the optimizer state too"


def test_blocks_move_between_stores_with_their_kept_versions(kit: Kit) -> None:
    whole, first, second = kit.opened(), kit.opened(ALL[:2]), kit.opened(ALL[2:])
    for version in range(3):
        kit.commit(whole, version)
        kit.commit(first, version, ALL[:2])
        kit.commit(second, version, ALL[2:])
        if version == 1:
            for store in (whole, first, second):
                store.versions.keep(1)
    first.copies.put(2, second.copies.take(ALL[2:]))
    assert kit.read(second, 2) == {}
    assert [kit.read(first, v) for v in (1, 2)] == [kit.read(whole, v) for v in (1, 2)]
    for store in (whole, first):
        kit.commit(store, 3)
    assert kit.read(first, 3) == kit.read(whole, 3)


def test_open_forgets_all_versions_and_sums(kit: Kit) -> None:
    store, fresh = kit.opened(), kit.opened(ALL[:2])
    for version in range(2):
        kit.commit(store, version)
    store.checkpoints.save(1)
    store.open(SPEC, [BLOCKS[i] for i in ALL[:2]])
    for version in range(2):
        for one in (store, fresh):
            kit.commit(one, version, ALL[:2])
    assert kit.read(store, 1) == kit.read(fresh, 1)
