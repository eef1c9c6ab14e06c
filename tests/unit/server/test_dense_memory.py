"""Memory of a dense store: gradients are released as soon as possible, and the use of memory does not grow."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch
from tests.kit.server import hyper_of

from paceline.blocks.chunks import LentFrame
from paceline.blocks.sums import SumMemory
from paceline.blocks.tensors import bytes_of
from paceline.blocks.torch_optimizers import optimizer_class
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.transport.memory.arena import Arena
from paceline.types import INIT_STEP, BlockSpec, Commit, Fence, Hyper, Kind, ModelSpec, OptimizerSpec, TensorSpec

TENSORS = tuple(TensorSpec(f"p{i}", (n,), "float32", Kind.PARAMETER, 0) for i, n in enumerate((700, 3, 5000)))
BLOCKS = cut(TENSORS, 4096)
NBYTES = sum(b.nbytes for b in BLOCKS)


class Sender:
    """A worker that lends gradients and knows which of them the store still holds."""

    def __init__(self) -> None:
        self.lent: dict[str, list[weakref.ref[ctypes.Array[ctypes.c_char]]]] = {}

    def frames(self, name: str, blocks: Sequence[BlockSpec] = BLOCKS) -> dict[int, object]:
        found: dict[int, object] = {}
        for block in blocks:
            holder = (ctypes.c_char * block.nbytes)()
            view = memoryview(holder).cast("B")
            view[:] = bytes_of(torch.randn(block.numel))
            self.lent.setdefault(name, []).append(weakref.ref(holder))
            found[block.index] = view
        return found

    def held(self) -> set[str]:
        return {name for name, refs in self.lent.items() if any(r() is not None for r in refs)}


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """Without the collector, only reference counts free memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def opened(name: str, memory: Arena | None = None, clip_norm: float | None = None) -> tuple[DenseStore, Sender, Hyper]:
    hyper = hyper_of(optimizer_class(name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1))  # type: ignore[call-arg]
    if name == "SGD":
        hyper[0]["momentum"] = 0.9
    store, sender = DenseStore(memory=memory), Sender()
    store.open(ModelSpec(TENSORS, OptimizerSpec(name, hyper), clip_norm), BLOCKS)
    store.sums.add(SumKey(INIT_STEP, None), SealedAttempt(1.0, frozenset(), sender.frames("initial")))
    apply(store, hyper, INIT_STEP)
    assert sender.held() == set()
    return store, sender, hyper


def apply(store: DenseStore, hyper: Hyper, step: int) -> None:
    store.apply(SumKey(step, None), Commit(0, step + 1, step, (), hyper, 1.0, False, 0, 0))


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_gradients_are_released_at_the_latest_with_the_update(name: str) -> None:
    store, sender, hyper = opened(name)
    for step in range(4):
        for slot in range(4):
            store.sums.add(
                SumKey(step, None), SealedAttempt(1.0, frozenset(), sender.frames(f"{step}/{slot}"), slot=slot)
            )
            assert len(sender.held()) <= 2, "the store holds at most the first and the last gradient"
        apply(store, hyper, step)
        assert sender.held() == set()
    assert store.versions.number == 4


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_a_single_gradient_is_used_without_a_copy_and_released(name: str) -> None:
    """One slot and one block: the optimizer reads the sender's memory."""
    specs = TENSORS[:1]
    blocks = cut(specs)
    hyper = hyper_of(optimizer_class(name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1))  # type: ignore[call-arg]
    store, sender = DenseStore(), Sender()
    store.open(ModelSpec(specs, OptimizerSpec(name, hyper)), blocks)
    for step in range(INIT_STEP, 3):
        store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), sender.frames(str(step), blocks)))
        assert sender.held() == {str(step)}
        apply(store, hyper, step)
        assert sender.held() == set()


def test_sums_of_each_step_use_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[set[int]] = [set()]

    class Watched(SumMemory):
        def take(self) -> torch.Tensor:
            memory = super().take()
            addresses[-1].add(memory.data_ptr())
            return memory

    monkeypatch.setattr("paceline.server.dense_sums.SumMemory", Watched)
    store, sender, hyper = opened("SGD")
    for step in range(4):
        for slot in range(4):
            store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), sender.frames("g"), slot=slot))
        apply(store, hyper, step)
        addresses.append(set())
    assert len(addresses[0]) == len(BLOCKS)
    assert addresses[1] == addresses[2] == addresses[3] == addresses[0]


def test_with_clipping_gradients_are_summed_at_once_after_the_first() -> None:
    store, sender, hyper = opened("SGD", clip_norm=1.0)
    for step in range(2):
        for slot in range(3):
            store.sums.add(
                SumKey(step, None), SealedAttempt(1.0, frozenset(), sender.frames(f"{step}/{slot}"), slot=slot)
            )
            assert len(sender.held()) == (1 if slot == 0 else 0)
        assert not store.update_early(SumKey(step, None), hyper), "the scale needs every block"
        apply(store, hyper, step)
        assert sender.held() == set()


def test_early_gradients_are_released_when_they_are_sealed_or_dropped() -> None:
    store, sender, hyper = opened("SGD")
    for step in range(3):
        key = SumKey(step, None)
        for slot in range(2):
            early = {index: (0, frame) for index, frame in sender.frames(f"{step}/{slot}").items()}
            store.sums.anticipate(key, slot, Fence(1, slot), 1.0, early)
            del early
        assert sender.held() == {f"{step}/0", f"{step}/1"}
        if step == 1:
            store.sums.drop(key)
            assert sender.held() == set()
        for slot in range(2):  # the seal names other pushes than those that were summed early
            revs = dict.fromkeys((b.index for b in BLOCKS), 1)
            frames = sender.frames(f"{step}/{slot} again")
            store.sums.add(key, SealedAttempt(1.0, frozenset(), frames, slot=slot, fence=Fence(1, slot), revs=revs))
            del frames
        assert f"{step}/0" not in sender.held()
        apply(store, hyper, step)
        assert sender.held() == set()


class Reader:
    """A delivery that the test ends."""

    done = False


def test_the_memory_of_a_store_does_not_grow_over_many_steps() -> None:
    memory = Arena(share=False)
    store, sender, hyper = opened("SGD", memory)
    before = 0
    for step in range(30):
        for slot in range(3):
            store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), sender.frames("g"), slot=slot))
        apply(store, hyper, step)
        sender.lent.clear()
        if step == 5:  # two readers are late, and three versions are kept
            slow = [Reader() for _ in range(2)]
        if 5 <= step < 7:
            for part in store.versions.read(step + 1, -1, None)[1]:
                assert isinstance(part, LentFrame)
                part.buffer.lend(slow[step - 5])
            del part
        if 8 <= step < 11:
            store.versions.keep(step + 1)
        if step == 12:
            assert memory.stats.in_use > 4 * NBYTES
            slow[0].done = slow[1].done = True
            for version in (9, 10, 11):
                store.versions.release(version)
        if step in (4, 29):
            assert memory.stats.in_use <= 2.1 * NBYTES, "the store needs memory for the current version and the next"
            before = before or memory.stats.in_use
            assert memory.stats.in_use == before


def test_an_optimizer_that_writes_to_gradients_does_not_write_to_a_workers_memory() -> None:
    hyper: Hyper = (
        {
            "lr": 0.1,
            "momentum": 0.9,
            "dampening": 0,
            "weight_decay": 0,
            "nesterov": True,
            "maximize": False,
            "foreach": True,
            "differentiable": False,
            "fused": None,
        },
    )
    tensors = (TensorSpec("w", (64,), "float32", Kind.PARAMETER, 0),)
    spec = ModelSpec(tensors, OptimizerSpec("SGD", hyper), None, True)
    store = DenseStore()
    store.open(spec, cut(tensors))
    sent = torch.ones(64)
    for version, step in enumerate((INIT_STEP, 0, 1)):
        store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), {0: bytes_of(sent)}))
        store.apply(SumKey(step, None), Commit(0, version, step, (Fence(1, 1),), hyper, 1.0, False, 0, 0))
    assert torch.equal(sent, torch.ones(64))
