"""Rule 3, seal: pushes are provisional until `optimizer.step()` seals the slot.

The seal names the revision of every block; the sealed revision counts. A sealed buffer belongs to its readers until
they release it or are declared lost. The buffers themselves are tested in tests/unit/reducers/test_servers.py.

Upheld by:
- `core.server.attempt.Attempt.arrived`: an attempt counts when every sealed revision is there
- `reducers.sealing.seal_offered`: the seal pushes again every gradient that changed since it was pushed
- `core.worker.server_requests.ServerRequests.unacked`: a payload is kept until its push is answered
"""

from __future__ import annotations

from tests.kit.core import (
    BLOCKS,
    ServerKit,
    fence,
    segment,
    sent,
)
from tests.kit.worker_core import WorkerKit

from paceline.messages import (
    BlockFrame,
    Push,
    PushAck,
    Ready,
    Refused,
    Seal,
)


def test_a_push_counts_only_after_its_seal() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    assert sent(server.push(0, 0, 5, seal=False), Ready) == []
    assert server.slots_added(0) == []
    out = server.push(0, 0, 5, revs={}, sealed={b.index: 0 for b in BLOCKS})
    assert len(sent(out, Ready)) == 1
    assert server.slots_added(0) == ["5"]


def test_a_seal_waits_for_the_push_of_every_block_that_it_names() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    out = server.push(0, 0, 5, revs={0: 0}, sealed={0: 0, 1: 0})
    assert sent(out, Ready) == []
    assert len(sent(server.push(0, 0, 5, revs={1: 0}, seal=False), Ready)) == 1


def test_the_sealed_push_of_a_block_counts_and_an_earlier_one_does_not() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    server.push(0, 0, 5, seal=False, content="early")
    out = server.push(0, 0, 5, revs={0: 1}, sealed={0: 1, 1: 1}, content="late")
    assert sent(out, Ready) == [], "the second push of block 1 has not arrived"
    out = server.push(0, 0, 5, seal=False, content="early")
    assert sent(out, Ready) == [], "an older push that arrives late does not count"
    server.push(0, 0, 5, revs={1: 1}, seal=False, content="late")
    assert server.store.added[-1][2] == {0: "late:0:1", 1: "late:1:1"}


def test_a_payload_is_released_only_after_its_push_is_answered() -> None:
    kit = WorkerKit()
    kit.computing(0)
    first, second = kit.push()
    kit.hear(Refused(first.req, "plan", "not yet"), "s0")
    assert set(kit.core.transfers.unacked) == {first.req, second.req}
    assert [p.req for p in sent(kit.core.tick(0.05), Push)] == [first.req], "the push is repeated soon"
    kit.hear(PushAck(first.req, "held"), "s0")
    assert set(kit.core.transfers.unacked) == {second.req}


def test_the_last_part_of_a_large_push_carries_the_seal() -> None:
    kit = WorkerKit(part_nbytes=2 * 256)
    kit.core.place(kit.prepared(1, "s0", "s1", "s0", "s0", "s0", "s0"))
    kit.computing()
    mine = kit.core.model.by_server["s0"]
    assert mine == (0, 2, 3, 4, 5)
    parts = {}
    for server, blocks in kit.core.model.by_server.items():
        seal = Seal(1.0, (), tuple((block, 0) for block in blocks))
        parts[server] = (
            tuple(BlockFrame(b, "float32", 64) for b in blocks),
            tuple(f"gradient {b}" for b in blocks),
            seal,
        )
    sends = kit.core.push(0.0, parts, 0.5)
    pushes = [(send.message, send.payload) for send in sends if isinstance(send.message, Push) and send.to == "s0"]
    assert [[b.block for b in push.blocks] for push, _ in pushes] == [[0, 2], [3, 4], [5]]
    assert [content for _, payload in pushes for content in payload] == [f"gradient {b}" for b in mine]
    assert [push.seal for push, _ in pushes] == [None, None, parts["s0"][2]], "the seal names the blocks of all parts"
    assert {(push.step, push.slot, push.fence, push.base, push.weight) for push, _ in pushes} == {
        (0, 0, fence(5), 0, 0.5)
    }
    assert len(kit.core.transfers.unacked) == 4, "each part needs its own answer"
    (empty,) = kit.core.push(0.0, {"s0": ((), (), Seal(0.0, (), ()))}, 0.0)
    assert isinstance(empty.message, Push)
    assert empty.message.seal == Seal(0.0, (), ())
