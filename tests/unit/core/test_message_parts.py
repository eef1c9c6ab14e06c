"""Large messages: where they are cut, and parts that are lost, repeated and out of order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.core import Recorder, fence, sent
from tests.kit.placed_server import ALL, Server, placement

from paceline.core.effects import Send
from paceline.core.message_parts import LEAST_NBYTES, PART_NBYTES, PUSH_NBYTES, part_nbytes, push_cuts
from paceline.core.server.block_store import SumKey
from paceline.core.server.replication import CopyTarget, Replication
from paceline.messages import (
    BlockFrame,
    CopyPart,
    CopyPartAck,
    Message,
    Ready,
    Replicate,
    Replicated,
    SumMeta,
)
from paceline.transport.limits import LinkLimits
from paceline.types import INIT_STEP, BlockSpec, Kind, NodeId
from paceline.wire.frames import WireLimits


def replicas(sends: Sequence[Send], to: NodeId) -> list[tuple[Replicate, Sequence[object]]]:
    return [(s.message, s.payload) for s in sends if isinstance(s.message, Replicate) and s.to == to]


# ---------------------------------------------------------------- cuts

BLOCKS = st.lists(st.one_of(st.integers(1, 64 << 20), st.just(64 << 20), st.integers(1, 4096)), max_size=40)


@given(BLOCKS, st.integers(1, 1000))
def test_every_part_of_a_push_keeps_the_limits_of_a_message(sizes: list[int], times: int) -> None:
    frames = [BlockFrame(n, "uint8", size) for n, size in enumerate(sizes * times)]
    bounds = push_cuts(frames, PUSH_NBYTES)
    assert (bounds[0], bounds[-1]) == (0, len(frames))
    limits = WireLimits()
    for start, end in pairwise(bounds):
        assert start < end or not frames
        assert end - start <= limits.max_frames
        assert sum(frame.numel for frame in frames[start:end]) <= limits.max_message_nbytes


@given(st.integers(0, 60 << 30))
def test_the_parts_of_an_answer_of_any_size_fit_into_a_queue(total: int) -> None:
    limits = LinkLimits()
    size = part_nbytes(total, PART_NBYTES)
    assert PART_NBYTES <= size <= limits.wire.max_frame_nbytes
    assert size // LEAST_NBYTES <= limits.wire.max_frames
    assert total // (size - (1 << 20) + 1) < limits.queue_messages, (
        "a part may be smaller than the limit by one block of 1 MiB"
    )
    assert total <= limits.queue_nbytes


# ---------------------------------------------------------------- a primary


def test_a_small_sum_is_one_message_for_each_copy() -> None:
    server = Server("s0", placement(1, ("s0", "s1", "s2")))
    asked = sent(server.push(INIT_STEP, 1), Replicate)
    assert [(m.part, m.parts, len(m.blocks)) for m in asked] == [(0, 1, ALL)] * 2


@pytest.mark.parametrize("order", list(permutations(range(2 * ALL))))
def test_a_primary_is_ready_only_when_every_part_is_answered(order: Sequence[int]) -> None:
    server = Server("s0", placement(1, ("s0", "s1", "s2")), part_nbytes=1)
    out = server.push(INIT_STEP, 1)
    asked = [(to, m) for to in ("s1", "s2") for m, _ in replicas(out, to)]
    assert [(m.part, m.parts, [f.block for f in m.blocks]) for _, m in asked] == [(b, ALL, [b]) for b in range(ALL)] * 2
    for count, number in enumerate(order, 1):
        to, message = asked[number]
        for again in range(2):
            ready = sent(server.say(to, Replicated(message.req, 0, 1)), Ready)
            assert len(ready) == (count == len(order) and not again)


def test_an_unanswered_part_is_repeated_alone_and_less_and_less_often() -> None:
    server = Server("s0", placement(1, ("s0", "s1")), part_nbytes=1)
    lost, held = sent(server.push(INIT_STEP, 1), Replicate)
    server.say("s1", Replicated(held.req, 0, 1))
    again: list[tuple[float, Message]] = []
    for half in range(1, 50):
        again += [(half / 2, m) for m in sent(server.core.tick(half / 2), Replicate)]
    assert again == [(at, lost) for at in (1.0, 2.0, 4.0, 8.0, 16.0, 24.0)]


class Large(Recorder):
    """A store of more blocks than the model of other tests has."""

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        return SumMeta(1.0, 1), tuple(BlockFrame(b, "float32", 16) for b in blocks), tuple(blocks)


BIG = {n: BlockSpec(n, Kind.PARAMETER, "float32", 16, 64, ()) for n in range(10)}


def flowing(**target: bool) -> tuple[Replication, list[Send]]:
    """Return a primary of ten blocks that sends a sum with two blocks in each part."""
    primary = Replication(Large(), 3.0, part_nbytes=2 * (16 << 10))
    primary.restart([CopyTarget("s1", tuple(BIG), **target)], 0, 1, BIG)
    return primary, primary.send(SumKey(0, None), Ready(0, 1, 0, (fence(1),), 0, 0, ()), 0.0)


def test_a_primary_limits_the_unanswered_parts_of_a_large_sum() -> None:
    primary, out = flowing()
    asked, ready = sent(out, Replicate), None
    assert [[f.block for f in m.blocks] for m in asked] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    while asked:
        assert ready is None
        following, ready = primary.answered("s1", Replicated(asked.pop(0).req, 0, 1), 0.0)
        asked += sent(following, Replicate)
    assert ready is not None


def test_a_dropped_sum_does_not_delay_the_next_sum() -> None:
    primary, out = flowing()
    assert len(sent(out, Replicate)) == 4
    assert primary.send(SumKey(1, None), Ready(0, 1, 1, (fence(2),), 0, 0, ()), 0.0) == []
    primary.forget(0)
    asked, ready = sent(primary.repeat(0.1), Replicate), None
    assert [m.step for m in asked] == [1] * 4
    while asked:
        following, ready = primary.answered("s1", Replicated(asked.pop().req, 0, 1), 0.2)
        asked += sent(following, Replicate)
    assert ready is not None
    assert ready.step == 1
    assert primary.repeat(9.0) == []


# ---------------------------------------------------------------- a copy


@pytest.mark.parametrize("seed", range(20))
def test_a_backup_has_a_sum_once_it_has_all_parts_with_losses_and_repeats(seed: int) -> None:
    dice = random.Random(seed)
    primary = Server("s0", placement(1, ("s0", "s1")), part_nbytes=1)
    backup = Server("s1", placement(1, ("s0", "s1")))
    waiting = replicas(primary.push(INIT_STEP, 1), "s1")
    follower = backup.core.backups.synced["s0"]
    arrived: set[int] = set()
    now, ready = 0.0, 0
    while not ready:
        now += 0.5
        primary.now = now
        waiting += replicas(primary.core.tick(now), "s1")
        dice.shuffle(waiting)
        for message, payload in [waiting.pop() for _ in range(min(len(waiting), dice.randrange(3)))]:
            if dice.random() < 0.3:
                continue
            arrived.add(message.part)
            for _ in range(dice.randrange(1, 3)):
                for reply in sent(backup.say("s0", message, payload), Replicated):
                    ready += dice.random() < 0.7 and len(sent(primary.say("s1", reply), Ready))
            assert (INIT_STEP in follower.sums) == (len(arrived) == ALL)
    assert ready == 1
    store = follower.group.store
    assert isinstance(store, Recorder)
    assert sorted(str(p) for _, payload in store.installed for p in payload) == [f"sum -1:{b}" for b in range(ALL)]
    primary.commit(0, 1)
    backup.commit(0, 1)
    assert follower.group.chains == primary.core.own.chains


def test_the_parts_of_an_unused_sum_are_dropped_when_its_step_is_committed() -> None:
    backup = Server("s1", placement(1, ("s0", "s1"))).begin()
    follower = backup.core.backups.synced["s0"]
    store = follower.group.store
    assert isinstance(store, Recorder)
    backup.replicate("s0", 0, 7, fence=fence(7), part=1, parts=2)
    backup.replicate("s0", 0, 8, fence=fence(8))
    backup.replicate("s0", 1, 9, fence=fence(9), part=0, parts=2)
    assert set(follower.sums) == {0}
    backup.commit(1, 8)
    assert store.dropped == [SumKey(0, fence(7))]
    assert len(sent(backup.replicate("s0", 0, 7, fence=fence(7), part=0, parts=2), Replicated)) == 1
    assert len(store.installed) == 4, "the server answers a late part and does not keep it"
    backup.tell(backup.assign(placement(2, ("s0", "s1")), at=1))
    assert store.dropped == [SumKey(0, fence(7)), SumKey(1, fence(9))]


@pytest.mark.parametrize("order", list(permutations(range(2 * ALL))))
def test_a_joining_copy_catches_up_with_parts_of_blocks_and_of_sums_in_any_order(order: Sequence[int]) -> None:
    primary = Server("s0", placement(1, ("s0",)), part_nbytes=1).begin()
    joiner = Server("s1", placement(1, ("s0",)), at=0)
    where = placement(2, ("s0",), joining=(("s1", tuple(range(ALL))),))
    joiner.tell(joiner.assign(where, at=0))
    parts = [s for s in primary.tell(primary.assign(where, at=0)) if isinstance(s.message, CopyPart)]
    sums = [s for s in primary.push(0, 5, epoch=2) if isinstance(s.message, Replicate)]
    assert len(parts) == len(sums) == ALL
    ready = []
    for number in order:
        send = (parts + sums)[number]
        for reply in joiner.say("s0", send.message, send.payload):
            if isinstance(reply.message, (Replicated, CopyPartAck)):
                ready += sent(primary.say("s1", reply.message), Ready)
    assert len(ready) == 1
    joined = joiner.core.backups.joining["s0"]
    assert joined.caught_up
    primary.commit(1, 5)
    joiner.commit(1, 5)
    assert joined.caught_up
    assert joined.group.chains == primary.core.own.chains
    assert (joined.version, joined.backup.sums) == (1, {})
