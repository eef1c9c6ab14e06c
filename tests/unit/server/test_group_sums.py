"""Sums of a group: all members make the same version, and with `ordered` that of a server, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from tests.kit.server import BLOCKS, bits_of, commit, model, push

from paceline.blocks.group_parts import GroupPart
from paceline.blocks.tensors import bytes_of
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, Fence, Kind

SPEC = model()
ALL = [block.index for block in BLOCKS]
KEY = SumKey(0, None)


def store_of(*, ordered: bool = False) -> DenseStore:
    store = DenseStore(ordered=ordered)
    store.open(SPEC, list(BLOCKS))
    push(SPEC, [(store, ALL)], 0)
    return store


def attempt_of(slot: int, weight: float = 1.0, absent: Sequence[int] = ()) -> SealedAttempt:
    payloads: dict[int, object] = {}
    for block in BLOCKS:
        whole = all(piece.tensor in absent for piece in block.pieces)
        if block.kind != Kind.FROZEN and not whole and weight:
            generator = torch.Generator().manual_seed(100 * slot + block.index)
            value = (torch.randn(block.numel, generator=generator) * 3).to(getattr(torch, block.dtype))
            for piece in block.pieces:
                if piece.tensor in absent:
                    value[piece.offset : piece.offset + piece.numel] = 0
            payloads[block.index] = bytes_of(value)
    revs = dict.fromkeys(payloads, 0)
    return SealedAttempt(weight, frozenset(absent), payloads, slot, Fence(1, slot + 1), revs)


def reduce(parts: Sequence[GroupPart], ranks: Sequence[int]) -> None:
    """What the library does: all members get the sums, the slots of each, and what is gathered."""
    for buckets in zip(*(part.summed for part in parts), strict=True):
        total = torch.stack(list(buckets)).sum(0).to(buckets[0].dtype)
        for bucket in buckets:
            bucket.copy_(total)
    for slot, root in enumerate(ranks if parts[0].slots else ()):
        for part in parts:
            part.slots[slot].copy_(parts[root].slots[slot])
    if parts[0].gathered is not None:
        for part in parts:
            part.everyone = [cast(torch.Tensor, other.gathered).clone() for other in parts]


def train(stores: Sequence[DenseStore], attempts: Sequence[SealedAttempt], ranks: Sequence[int]) -> None:
    """Make version 1: member `ranks[i]` has slot i."""
    parts = []
    for rank, store in enumerate(stores):
        mine = [attempt for attempt, of in zip(attempts, ranks, strict=True) if of == rank]
        parts.append(store.group_sums.contribute(0, len(attempts), mine))
    reduce(parts, ranks)
    for store, part in zip(stores, parts, strict=True):
        assert store.group_sums.adopt(KEY, part, ranks) == tuple(a.fence for a in attempts)
        store.apply(KEY, commit(SPEC, 1, 0))


def served(attempts: Sequence[SealedAttempt]) -> dict[str, bytes]:
    """What a server makes of the same slots."""
    store = store_of()
    for attempt in attempts:
        store.sums.add(KEY, attempt)
    store.apply(KEY, commit(SPEC, 1, 0))
    return bits_of(store.snapshot())


CASES = {
    "two slots": [attempt_of(0), attempt_of(1)],
    "five slots": [attempt_of(slot) for slot in range(5)],
    "a short slot": [attempt_of(0), attempt_of(1, 0.4)],
    "an empty slot": [attempt_of(0, 0.0), attempt_of(1)],
    "absent tensors": [attempt_of(0, absent=(0, 4)), attempt_of(1, absent=(1, 4, 5)), attempt_of(2, absent=(4,))],
    "only empty slots": [attempt_of(0, 0.0), attempt_of(1, 0.0)],
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("ranks", [(0, 1, 2, 0, 1), (2, 0, 0, 1, 0), (1, 1, 1, 1, 1)], ids=str)
def test_ordered_members_make_the_version_of_a_server(case: str, ranks: tuple[int, ...]) -> None:
    attempts, stores = CASES[case], [store_of(ordered=True) for _ in range(3)]
    train(stores, attempts, ranks[: len(attempts)])
    assert [bits_of(store.snapshot()) for store in stores] == [served(attempts)] * 3


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("ranks", [(0, 1, 2, 0, 1), (2, 0, 0, 1, 0), (1, 1, 1, 1, 1)], ids=str)
def test_members_make_one_version_near_that_of_a_server(case: str, ranks: tuple[int, ...]) -> None:
    attempts, stores = CASES[case], [store_of() for _ in range(3)]
    train(stores, attempts, ranks[: len(attempts)])
    first, second, third = (bits_of(store.snapshot()) for store in stores)
    assert first == second == third
    expected = served(attempts)
    assert first.keys() == expected.keys()
    if len(attempts) == 2 and case != "a short slot":
        assert first == expected  # one addition has one order
    values = {block.index: stores[0].snapshot()[block.index].value for block in BLOCKS}
    plain = store_of()
    for attempt in attempts:
        plain.sums.add(KEY, attempt)
    plain.apply(KEY, commit(SPEC, 1, 0))
    for block in BLOCKS:
        near = 0.1 if block.dtype == "bfloat16" else 1e-5
        torch.testing.assert_close(values[block.index], plain.snapshot()[block.index].value, atol=near, rtol=near)


def test_the_initial_weights_come_from_the_member_that_has_them() -> None:
    stores = [DenseStore() for _ in range(2)]
    for store in stores:
        store.open(SPEC, list(BLOCKS))
    values = {b.index: torch.full((b.numel,), -0.0).to(getattr(torch, b.dtype)) for b in BLOCKS}
    payloads: dict[int, object] = {index: bytes_of(value) for index, value in values.items()}
    first = SealedAttempt(1.0, frozenset(), payloads, 0, Fence(1, 1), dict.fromkeys(payloads, 0))
    parts = [stores[0].group_sums.contribute(INIT_STEP, 1, []), stores[1].group_sums.contribute(INIT_STEP, 1, [first])]
    reduce(parts, [1])
    for store, part in zip(stores, parts, strict=True):
        assert store.group_sums.adopt(SumKey(INIT_STEP, None), part, [1]) == (Fence(1, 1),)
        store.apply(SumKey(INIT_STEP, None), commit(SPEC, 0, INIT_STEP))
    assert bits_of(stores[0].snapshot()) == bits_of(stores[1].snapshot())
    assert torch.signbit(stores[0].snapshot()[0].value).all()  # also the sign of a zero


def test_a_slot_that_no_member_added_is_named() -> None:
    stores = [store_of() for _ in range(2)]
    parts = [store.group_sums.contribute(0, 2, [attempt_of(0)] if n == 0 else []) for n, store in enumerate(stores)]
    reduce(parts, [0, 1])
    assert stores[0].group_sums.adopt(KEY, parts[0], [0, 1]) == (Fence(1, 1), None)
    stores[0].sums.drop(KEY)


def test_the_next_weights_can_be_read_before_the_commit() -> None:
    stores = [store_of() for _ in range(2)]
    train(stores, CASES["two slots"], (0, 1))
    key = SumKey(1, None)
    attempts = [attempt_of(0), attempt_of(1)]
    parts = [store.group_sums.contribute(1, 2, [attempts[n]]) for n, store in enumerate(stores)]
    reduce(parts, [0, 1])
    for store, part in zip(stores, parts, strict=True):
        store.group_sums.adopt(key, part, [0, 1])
    assert stores[0].update_early(key, SPEC.optimizer.hyper)
    assert stores[0].versions.ahead == 2
