"""Early sums: a store that is offered unsealed gradients ends with the bits of one that is not."""

from __future__ import annotations

import random

import pytest
from tests.kit.server import BLOCKS, TENSORS, commit, content, contents, model

from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, Fence, Kind

Blocks = dict[int, tuple[int, object]]


def open_both(dice: random.Random) -> list[DenseStore]:
    spec = model()
    start = {b.index: content(dice, b.index) for b in BLOCKS}
    stores = [DenseStore(), DenseStore()]
    for store in stores:
        store.open(spec, BLOCKS)
        store.sums.add(SumKey(INIT_STEP, None), SealedAttempt(1.0, frozenset(), start))
        store.apply(SumKey(INIT_STEP, None), commit(spec, 0, INIT_STEP))
    return stores


class Attempt:
    """The pushes of one worker for one slot, which may change until the seal."""

    def __init__(self, dice: random.Random, slot: int, fence: Fence) -> None:
        self.slot, self.fence = slot, fence
        self.weight = dice.choice([1.0, 1.0, 0.25])
        gone = {n for n, t in enumerate(TENSORS) if t.kind == Kind.PARAMETER and dice.random() < 0.15}
        self.absent = frozenset(gone)
        self.pushed: Blocks = {
            b.index: (0, content(dice, b.index))
            for b in BLOCKS
            if b.kind != Kind.FROZEN and not all(p.tensor in gone for p in b.pieces)
        }

    def change(self, dice: random.Random) -> None:
        index = dice.choice(sorted(self.pushed))
        self.pushed[index] = (self.pushed[index][0] + 1, content(dice, index))


@pytest.mark.parametrize("seed", range(60))
def test_the_bits_do_not_depend_on_offered_gradients(seed: int) -> None:
    dice = random.Random(seed)
    spec = model("SGD", {"lr": 0.1, "momentum": 0.9})
    told, plain = open_both(dice)
    for step in range(5):
        slots = dice.randrange(1, 5)
        winners = [Attempt(dice, n, Fence(1, n)) for n in range(slots)]
        losers = [Attempt(dice, dice.randrange(slots), Fence(1, 50 + n)) for n in range(2)]
        key, done = SumKey(step, None), 0
        while done < slots:
            attempt = dice.choice([*winners, *losers])
            if dice.random() < 0.3 and attempt in winners[done:]:
                attempt.change(dice)
            some = {b: pushed for b, pushed in attempt.pushed.items() if dice.random() < 0.7}
            if dice.random() < 0.1:  # a block that the seal will not name
                some[0] = (9, content(dice, 0))
            told.sums.anticipate(key, attempt.slot, attempt.fence, attempt.weight, some)
            if dice.random() < 0.1:
                told.checkpoints.save(step)
            elif dice.random() < 0.2 and told.checkpoints.frozen is not None:
                told.checkpoints.frozen.release()
                told.checkpoints.thaw()
            if dice.random() < 0.4:
                sealed = winners[done]
                frames = {b: frame for b, (_, frame) in sealed.pushed.items()}
                revs = {b: rev for b, (rev, _) in sealed.pushed.items()}
                for store in (told, plain):
                    store.sums.add(
                        key,
                        SealedAttempt(sealed.weight, sealed.absent, frames, done, sealed.fence, revs),
                    )
                done += 1
        if dice.random() < 0.5:
            told.update_early(key, spec.optimizer.hyper if dice.random() < 0.5 else ())
        for store in (told, plain):
            store.apply(key, commit(spec, step + 1, step))
        assert contents([(told, [])]) == contents([(plain, [])]), f"step {step}"


def test_a_sum_of_unsealed_gradients_is_dropped_or_ends_with_its_step() -> None:
    dice = random.Random(0)
    spec = model()
    told, plain = open_both(dice)
    early = Attempt(dice, 0, Fence(1, 7))
    told.sums.anticipate(SumKey(0, None), 0, early.fence, 1.0, early.pushed)
    told.sums.anticipate(SumKey(1, None), 0, early.fence, 1.0, early.pushed)
    frames = {b: frame for b, (_, frame) in Attempt(dice, 0, Fence(1, 8)).pushed.items()}
    for store in (told, plain):
        store.sums.add(SumKey(0, Fence(1, 8)), SealedAttempt(1.0, frozenset(), frames))
        store.apply(SumKey(0, Fence(1, 8)), commit(spec, 1, 0))
    told.sums.drop(SumKey(1, None))
    assert contents([(told, [])]) == contents([(plain, [])])
    for store in (told, plain):
        for slot in range(2):
            store.sums.add(SumKey(1, None), SealedAttempt(1.0, frozenset(), frames, slot=slot))
        store.apply(SumKey(1, None), commit(spec, 2, 1))
    assert contents([(told, [])]) == contents([(plain, [])])


def test_frames_of_senders_are_not_written() -> None:
    dice = random.Random(1)
    told, _ = open_both(dice)
    attempts = [Attempt(dice, n, Fence(1, n)) for n in range(3)]
    before = [bytes(frame) for a in attempts for _, frame in a.pushed.values() if isinstance(frame, memoryview)]
    key = SumKey(0, None)
    for attempt in attempts:
        told.sums.anticipate(key, attempt.slot, attempt.fence, 1.0, attempt.pushed)
    for attempt in attempts:
        frames = {b: frame for b, (_, frame) in attempt.pushed.items()}
        revs = dict.fromkeys(frames, 0)
        told.sums.add(key, SealedAttempt(1.0, attempt.absent, frames, attempt.slot, attempt.fence, revs))
    told.apply(key, commit(model(), 1, 0))
    after = [bytes(frame) for a in attempts for _, frame in a.pushed.values() if isinstance(frame, memoryview)]
    assert after == before
