"""Copies of blocks on other servers have the bits of their primary, however and whenever they were made."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from tests.kit.server import BLOCKS, EXACT, Slot, bits, commit, content, contents, model

from paceline.blocks.block_state import FrozenVersion
from paceline.blocks.chunks import LentFrame
from paceline.blocks.sums import BlockSum, SumMemory
from paceline.blocks.tensors import bytes_of, piece_of, tensor_of
from paceline.blocks.threads import Threads
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.core.server.replication import CopyTarget, Replication
from paceline.messages import BlockFrame, CopyFrame, CopyPart, CopyPartAck, SumMeta
from paceline.server.dense_store import DenseStore
from paceline.server.shared_sums import SharedSum
from paceline.transport.base import Frame
from paceline.transport.inproc import _lend
from paceline.transport.memory.arena import Arena
from paceline.types import INIT_STEP, Commit, Fence, Kind, ModelSpec, TensorSpec
from paceline.wire.frames import check_message

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYTHING = [b.index for b in BLOCKS]
Sent = tuple[SumMeta, tuple[BlockFrame, ...], tuple[Frame, ...]]


def lent(parts: Sequence[object]) -> tuple[Frame, ...]:
    """Return the frames as the receiver sees them; the memory is lent while the frames exist."""
    assert all(isinstance(part, LentFrame) for part in parts)
    mine = [part for part in parts if isinstance(part, LentFrame)]
    views, delivery = _lend([part.frame for part in mine])
    for part in mine:
        part.buffer.lend(delivery)
    return views


class Primary:
    """The store of a primary, and the sums that it sends."""

    def __init__(self, dice: random.Random, spec: ModelSpec) -> None:
        self.dice, self.spec = dice, spec
        self.memory = Arena(share=False)
        self.store = DenseStore(memory=self.memory, threads=Threads(dice.choice([1, 2])))
        self.store.open(spec, BLOCKS)
        self.version = -1

    def sum(self) -> SumKey:
        """Compute the complete sum of the next step; return its key."""
        dice, step = self.dice, self.version if self.version >= 0 else INIT_STEP
        if step == INIT_STEP:
            self.store.sums.add(
                SumKey(step, None), SealedAttempt(1.0, frozenset(), {i: content(dice, i) for i in EVERYTHING})
            )
            return SumKey(step, None)
        slots = [Slot(dice) for _ in range(dice.randrange(1, 5))]
        key = SumKey(step, Fence(1, step) if len(slots) == 1 and dice.random() < 0.5 else None)
        for number, slot in enumerate(slots):
            fence, revs = Fence(1, number), dict.fromkeys(slot.frames, 0)
            if key.fence is None and dice.random() < 0.4:
                early = {i: (0, frame) for i, frame in slot.frames.items() if dice.random() < 0.7}
                self.store.sums.anticipate(key, number, fence, slot.weight, early)
            self.store.sums.add(key, SealedAttempt(slot.weight, slot.absent, slot.frames, number, fence, revs))
        self.store.update_early(key, self.spec.optimizer.hyper)
        return key

    def send(self, key: SumKey, blocks: Sequence[int]) -> Sent:
        meta, frames, parts = self.store.sums.export(key, blocks)
        coded = msgspec.msgpack.decode(msgspec.msgpack.encode(meta), type=SumMeta)
        return coded, frames, lent(parts)

    def apply(self, key: SumKey, stores: Sequence[DenseStore]) -> None:
        self.version += 1
        for store in stores:
            store.apply(key, self.row(key, self.version))

    def row(self, key: SumKey, version: int) -> Commit:
        scale = 0.7 if self.spec.clip_norm is not None and version else 1.0
        return msgspec.structs.replace(commit(self.spec, version, key.step), scale=scale)


def same(copy: DenseStore, blocks: Sequence[int], primary: DenseStore) -> bool:
    """Return whether a copy has exactly these blocks, with the bits of the primary."""
    wanted = {f"{i}" for i in blocks}
    theirs = {name: b for name, b in contents([(primary, [])]).items() if name.split("/")[0] in wanted}
    return contents([(copy, [])]) == theirs


def some(dice: random.Random) -> list[int]:
    return sorted(dice.sample(EVERYTHING, dice.randrange(1, len(EVERYTHING) + 1)))


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["free", "clipped"])
@pytest.mark.parametrize(("name", "numbers"), EXACT, ids=lambda v: v if isinstance(v, str) else ",".join(v))
@pytest.mark.parametrize("seed", range(4))
def test_a_backup_and_a_joining_copy_have_the_bits_of_their_primary(
    name: str, numbers: dict[str, Any], clip_norm: float | None, seed: int
) -> None:
    """The backup exists from the beginning, and may be some steps late; the joining server gets a copy later."""
    dice = random.Random(f"{name} {sorted(numbers)} {clip_norm} {seed}")
    spec = msgspec.structs.replace(model(name, numbers), clip_norm=clip_norm)
    primary, backup, joiner = Primary(dice, spec), DenseStore(), DenseStore()
    backed, joined = some(dice), some(dice)
    backup.open(spec, [BLOCKS[i] for i in backed])
    join_at = dice.randrange(0, 5)
    behind: list[tuple[SumKey, Sent, int]] = []
    copying: tuple[list[CopyFrame], list[object], int] | None = None
    pending: list[tuple[SumKey, Sent, int]] = []
    frozen: FrozenVersion | None = None
    for step in range(10):
        key = primary.sum()
        if dice.random() < 0.2 and primary.version >= 0:
            primary.store.checkpoints.save(primary.version)
            frozen = primary.store.checkpoints.frozen
        sent = primary.send(key, backed)
        if copying is not None:
            pending.append((key, primary.send(key, joined), primary.version + 1))
        behind.append((key, sent, primary.version + 1))
        before = None if frozen is None else bits(frozen)
        primary.apply(key, [primary.store])
        del sent
        if frozen is not None:
            assert bits(frozen) == before, "a checkpoint that is being written does not change"
            if dice.random() < 0.3:
                frozen.done, frozen = True, None
                primary.store.checkpoints.thaw()
        if step == join_at:
            frames, parts = primary.store.copies.copy_out(joined)
            assert [f.block for f in frames] == sorted(f.block for f in frames)
            joiner.open(spec, [BLOCKS[i] for i in joined])
            copying = list(frames), list(parts), primary.version
            del parts
        while behind and (len(behind) > 3 or dice.random() < 0.6):
            catch_up(primary, backup, behind.pop(0))
        if not behind:
            assert same(backup, backed, primary.store), f"the backup at version {primary.version}"
            assert frames_of(backup, primary.version) == frames_of(primary.store, primary.version, backed)
        if copying is not None and copying[0] and (step == 9 or dice.random() < 0.5):
            pieces = dice.randrange(1, len(copying[0]) + 1) if step < 9 else len(copying[0])
            joiner.copies.copy_in(copying[2], copying[0][:pieces], lent(copying[1][:pieces]))
            del copying[0][:pieces], copying[1][:pieces]
        if copying is not None and not copying[0]:
            while pending:
                catch_up(primary, joiner, pending.pop(0))
            assert same(joiner, joined, primary.store), f"the joiner at version {primary.version}"
    assert same(joiner, joined, primary.store)


def catch_up(primary: Primary, copy: DenseStore, one: tuple[SumKey, Sent, int]) -> None:
    key, (meta, frames, views), version = one
    copy.sums.install(key, meta, frames, views)
    copy.apply(key, primary.row(key, version))


def frames_of(store: DenseStore, version: int, blocks: Sequence[int] | None = None) -> list[list[int]]:
    return [[f.block for f in store.versions.read(version, have, blocks)[0]] for have in range(-1, version + 1)]


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_lent_memory_does_not_change_and_is_reused(name: str) -> None:
    """Sums that a backup has not applied yet, and a copy on its way, keep their bits while the primary continues."""
    dice = random.Random(name)
    primary = Primary(dice, model(name, {"lr": 0.1}))
    seen: list[tuple[tuple[Frame, ...], list[bytes]]] = []
    in_use: list[int] = []
    parts: Sequence[LentFrame] = ()
    state: list[bytes] = []
    for step in range(40):
        key = primary.sum()
        _, _, views = primary.send(key, EVERYTHING)
        seen.append((views, [bytes(view) for view in views]))
        del views
        if len(seen) > 3:
            seen.pop(0)
        primary.apply(key, [primary.store])
        if step == 10:
            _, parts = primary.store.copies.copy_out(EVERYTHING)
            state = [bytes(part.frame) for part in parts]
        if step == 20:
            parts = ()
        for views, before in seen:
            assert [bytes(view) for view in views] == before, f"step {step} wrote under a backup"
        del views
        assert [bytes(part.frame) for part in parts] == state[: len(parts)]
        in_use.append(primary.memory.stats.in_use)
    total = sum(block.nbytes for block in BLOCKS)
    assert max(in_use[25:]) <= 7 * total, "two versions, three sums that backups read, and two more that alternate"


def test_a_backup_releases_a_sum_with_the_update() -> None:
    dice = random.Random(1)
    primary = Primary(dice, model())
    backup = DenseStore()
    backup.open(primary.spec, BLOCKS)
    for _ in range(4):
        key = primary.sum()
        meta, frames, parts = primary.store.sums.export(key, EVERYTHING)
        sums = [part.buffer for part in parts if isinstance(part.buffer, SharedSum)]
        views = lent(parts)
        backup.sums.install(key, meta, frames, views)
        del views, parts
        assert sums
        assert not any(one.idle for one in sums), "the backup reads it in place"
        primary.apply(key, [primary.store, backup])
        assert all(one.idle for one in sums)
    key = primary.sum()
    meta, frames, parts = primary.store.sums.export(key, EVERYTHING)
    sums = [part.buffer for part in parts if isinstance(part.buffer, SharedSum)]
    backup.sums.install(key, meta, frames, lent(parts))
    backup.sums.drop(key)
    assert all(one.idle for one in sums)


def test_a_sum_can_be_sent_to_several_servers_and_repeated() -> None:
    dice = random.Random(2)
    primary = Primary(dice, model("Adam", {"lr": 0.1}))
    copies = [DenseStore() for _ in range(3)]
    for copy in copies:
        copy.open(primary.spec, BLOCKS)
    for _ in range(4):
        key = primary.sum()
        exported = [primary.store.sums.export(key, EVERYTHING) for _ in copies]
        for copy, (meta, frames, parts) in zip(copies, exported, strict=True):
            copy.sums.install(key, meta, frames, lent(parts))
            copy.sums.install(key, meta, frames, lent(parts))
        primary.apply(key, [primary.store, *copies])
        assert all(same(copy, EVERYTHING, primary.store) for copy in copies)


@pytest.mark.parametrize(("name", "numbers"), EXACT, ids=lambda v: v if isinstance(v, str) else ",".join(v))
@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_move_between_stores_do_not_change(name: str, numbers: dict[str, Any], seed: int) -> None:
    """Blocks move between the groups of one server, with their kept versions and a frozen one."""
    dice = random.Random(f"{name} {sorted(numbers)} {seed}")
    spec = model(name, numbers)
    primary = Primary(dice, spec)
    memory = Arena(share=False)
    homes: dict[int, int] = {i: dice.randrange(3) for i in EVERYTHING}
    stores = [DenseStore(memory=memory) for _ in range(3)]
    for number, store in enumerate(stores):
        store.open(spec, [BLOCKS[i] for i in EVERYTHING if homes[i] == number])
    kept: dict[int, dict[int, list[bytes]]] = {}
    frozen: list[tuple[FrozenVersion, dict[str, bytes]]] = []
    for _ in range(10):
        key = primary.sum()
        for number, store in enumerate(stores):
            meta, frames, parts = primary.store.sums.export(key, [i for i in EVERYTHING if homes[i] == number])
            store.sums.install(key, meta, frames, lent(parts))
            del parts
        primary.apply(key, [primary.store, *stores])
        version = primary.version
        if dice.random() < 0.3:
            for store in (primary.store, *stores):
                store.versions.keep(version)
            kept[version] = read(primary.store, version)
        if kept and dice.random() < 0.3:
            released = dice.choice(sorted(kept))
            for store in (primary.store, *stores):
                store.versions.release(released)
            del kept[released]
        if dice.random() < 0.2:
            saved = dice.choice(stores)
            saved.checkpoints.save(version)
            assert saved.checkpoints.frozen is not None
            frozen.append((saved.checkpoints.frozen, bits(saved.checkpoints.frozen)))
        for _ in range(dice.randrange(3)):
            source, target = dice.sample(range(3), 2)
            leaving = [i for i in EVERYTHING if homes[i] == source and dice.random() < 0.6]
            if dice.random() < 0.3:  # a store that was opened for the blocks before they come
                there = stores[target].copies.take([i for i in EVERYTHING if homes[i] == target])
                stores[target] = DenseStore(memory=memory)
                stores[target].open(spec, [BLOCKS[i] for i in EVERYTHING if homes[i] == target])
                stores[target].copies.put(version, there)
            stores[target].copies.put(version, stores[source].copies.take(leaving))
            homes.update(dict.fromkeys(leaving, target))
        for store, held in ((s, [i for i in EVERYTHING if homes[i] == n]) for n, s in enumerate(stores)):
            assert same(store, held, primary.store)
            assert store.versions.number == version or not held
            for old, expected in kept.items() if held else ():
                assert read(store, old) == {i: expected[i] for i in held}
        assert all(bits(one) == before for one, before in frozen)


def read(store: DenseStore, version: int) -> dict[int, list[bytes]]:
    """Return the pieces of each block as a reader gets them."""
    frames, parts = store.versions.read(version, -1, None)
    assert [f.block for f in frames] == sorted(f.block for f in frames)
    found = {}
    for frame, part in zip(frames, parts, strict=True):
        assert isinstance(part, LentFrame)
        flat = tensor_of(part.frame, frame.dtype)
        found[frame.block] = [bytes(bytes_of(piece_of(flat, p))) for p in BLOCKS[frame.block].pieces]
    return found


def test_a_chunk_whose_blocks_all_move_is_not_copied() -> None:
    spec = model("Adam", {"lr": 0.1})
    primary = Primary(random.Random(3), spec)
    for _ in range(3):
        primary.apply(primary.sum(), [primary.store])
    other = DenseStore()
    other.open(spec, ())
    before = {i: s.value.data_ptr() for i, s in primary.store.snapshot().items()}
    other.copies.put(primary.version, primary.store.copies.take(EVERYTHING))
    assert {i: s.value.data_ptr() for i, s in other.snapshot().items()} == before
    assert primary.store.snapshot() == {}


def test_a_copy_of_many_small_tensors_is_sent_in_valid_messages() -> None:
    tensors = tuple(TensorSpec(f"p{n}", (2,), "float32", Kind.PARAMETER, 0) for n in range(3000))
    spec = msgspec.structs.replace(model("Adam", {"lr": 0.1}), tensors=tensors)
    blocks = cut(tensors)
    store = DenseStore()
    store.open(spec, blocks)
    for version, step in enumerate((INIT_STEP, 0)):
        store.sums.add(
            SumKey(step, None),
            SealedAttempt(1.0, frozenset(), {b.index: bytes_of(torch.ones(b.numel)) for b in blocks}),
        )
        store.apply(SumKey(step, None), commit(spec, version, step))
    primary = Replication(store, 3.0)
    primary.restart(
        [CopyTarget("server-1/1", tuple(b.index for b in blocks), joining=True)], 0, 1, {b.index: b for b in blocks}
    )
    chains = {b.index: b"" for b in blocks}
    waiting, frames = primary.begin(1, chains, 0.0), 0
    while waiting:
        sent = waiting.pop()
        assert isinstance(sent.message, CopyPart)
        check_message(sent.message, [part.frame for part in sent.payload if isinstance(part, LentFrame)])
        frames += len(sent.payload)
        ack = CopyPartAck(sent.message.req, 0, 1, sent.message.part)
        waiting += primary.answered("server-1/1", ack, 0.0)[0]
    assert frames == len(blocks) + 3 * len(tensors)


def test_threads_that_finish_sums_do_not_use_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the port's own thread may allocate memory and ask for its readers."""
    monkeypatch.setattr("paceline.blocks.threads.WORTH_NBYTES", 0)
    own = threading.get_ident()
    others: set[int] = set()

    class Reader:
        gone = False

        @property
        def done(self) -> bool:
            assert threading.get_ident() == own
            return self.gone

    class Guarded(Arena):
        def allocate(self, nbytes: int) -> Frame:
            assert threading.get_ident() == own
            return super().allocate(nbytes)

    plain_gather = BlockSum.gather

    def gather(self: BlockSum, sums: SumMemory) -> torch.Tensor:
        others.add(threading.get_ident())
        time.sleep(0.005)  # slow, so that the other thread gets items too
        return plain_gather(self, sums)

    monkeypatch.setattr(BlockSum, "gather", gather)
    dice = random.Random(4)
    primary, copy = Primary(dice, model()), DenseStore()
    primary.store = DenseStore(memory=Guarded(share=False), threads=Threads(2))
    for store in (primary.store, copy):
        store.open(primary.spec, BLOCKS)
    for _ in range(12):
        key = primary.sum()
        meta, frames, parts = primary.store.sums.export(key, EVERYTHING)
        reader = Reader()
        for part in parts:
            part.buffer.lend(reader)
        copy.sums.install(key, meta, frames, [part.frame for part in parts])
        primary.apply(key, [primary.store, copy])
        reader.gone = True
        assert same(copy, EVERYTHING, primary.store)
    primary.store.close()
    assert len(others) == 2
