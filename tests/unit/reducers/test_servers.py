"""Servers get the gradients that the script had at `step()`, whatever was pushed before and from which memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.kit.pushing_worker import PushingWorker, clipped, nothing, taken_away, three_layers
from torch import nn

from paceline.messages import BlockFrame, Prepared, Seal
from paceline.types import Fence, Kind, Placement


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    made = PushingWorker(three_layers())
    yield made
    made.close()


def swap_servers(worker: PushingWorker, epoch: int) -> None:
    """Each block has the other server as its primary."""
    placement = worker.session.core.model.placement
    assert placement is not None
    by_server = list(worker.session.core.model.by_server)
    owners = tuple(by_server[1 - by_server.index(owner)] for owner in placement.owners)
    worker.session.place(Prepared(2, 1, 0, Placement(epoch, owners, placement.addresses)))


def moved(worker: PushingWorker) -> None:
    """Move every block to the other server, which has nothing of this turn, and lease the slot again."""
    swap_servers(worker, 2)
    worker.lease(Fence(1, 100 + worker.slot))
    for server in worker.servers:
        server.drop()


@pytest.mark.parametrize("change", [nothing, clipped, taken_away])
def test_a_sealed_turn_can_be_pushed_again_to_the_blocks_new_servers(
    worker: PushingWorker, change: Callable[[PushingWorker], None]
) -> None:
    worker.begin()
    worker.backward()
    change(worker)
    worker.seal()
    moved(worker)
    worker.reducer.seal_again(worker.report())
    worker.talk()
    worker.check()
    assert {push.fence for server in worker.servers for push in server.pushes} == {Fence(1, 100)}


def held(worker: PushingWorker) -> dict[int, tuple[bytes, float, frozenset[int]]]:
    """Return what the servers hold of each block: its bytes, its weight, and its absent tensors."""
    found = {}
    for server in worker.servers:
        assert server.attempt.arrived
        seal = server.attempt.seal
        assert seal is not None
        for index, _ in seal.revs:
            tensors = {p.tensor for p in worker.binding.blocks[index].pieces}
            payload = server.attempt.payloads[index]
            assert isinstance(payload, memoryview)
            found[index] = bytes(payload), seal.weight, frozenset(seal.absent) & tensors
    return found


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_seal_that_is_pushed_again_has_the_old_gradients_even_if_the_model_changed(weight: float) -> None:
    torch.manual_seed(0)
    normal = PushingWorker(
        nn.Sequential(nn.Linear(40, 400), nn.BatchNorm1d(400), nn.Linear(400, 400), nn.Linear(400, 10))
    )
    for _ in range(3):  # the buffers are in use
        normal.begin()
        normal.backward()
        normal.seal()
        for server in normal.servers:
            server.drop()
    normal.begin(weight)
    normal.backward()
    clipped(normal)
    normal.seal()
    first = held(normal)
    assert {normal.binding.blocks[index].kind for index in first} == {Kind.PARAMETER, Kind.MEAN, Kind.LAST}
    normal.binding.drop_gradients()
    normal.binding.begin_turn()
    normal.model(torch.randn(4, 40))
    normal.binding.begin_turn()
    for block in normal.binding.blocks:  # as if the model had read another version
        normal.binding.fill([BlockFrame(block.index, block.dtype, block.numel)], [memoryview(bytearray(block.nbytes))])
    for _ in range(2):
        moved(normal)
        normal.reducer.seal_again(normal.report())
        normal.talk()
        assert held(normal) == first
    normal.close()


def test_an_empty_seal_is_still_empty_when_it_is_pushed_again(worker: PushingWorker) -> None:
    worker.begin()
    worker.seal(empty=True)
    moved(worker)
    worker.reducer.seal_again(worker.report())
    worker.talk()
    assert [push.seal for server in worker.servers for push in server.pushes] == [Seal(0.0, (), ())] * 2


def test_without_offers_everything_is_pushed_with_the_seal(worker: PushingWorker) -> None:
    worker.overlap.close()
    worker.begin(0.5)
    worker.backward()
    worker.seal()
    worker.check()
    for server in worker.servers:
        (push,) = server.pushes
        assert push.seal is not None
        assert push.weight == push.seal.weight == 0.5


def test_a_skipped_step_is_sealed_empty_even_after_offers(worker: PushingWorker) -> None:
    worker.begin()
    worker.backward()
    worker.seal(empty=True)
    for server in worker.servers:
        assert server.attempt.payloads
        assert server.attempt.arrived
        assert server.attempt.seal is not None
        assert (server.attempt.seal.weight, server.attempt.seal.revs) == (0.0, ())


def test_offered_blocks_that_move_are_pushed_again(worker: PushingWorker) -> None:
    worker.begin()
    worker.backward()
    worker.talk()
    for server in worker.servers:
        server.drop()
    swap_servers(worker, 1)
    worker.seal()
    worker.check()


def test_a_buffer_is_written_again_only_while_nothing_reads_it(worker: PushingWorker) -> None:
    """Slots that servers hold keep their content; once they are dropped, idle buffers are given back."""
    worker.overlap.close()
    held = []
    for _ in range(5):
        worker.begin()
        worker.backward()
        worker.seal()
        worker.check()
        for server in worker.servers:
            held += server.frames
            server.drop()
    assert len(worker.reducer._buffers) == 5
    assert all(bytes(frame) == before for frame, before in held)
    held.clear()
    for _ in range(100):
        for server in worker.servers:
            server.drop()
        worker.begin()
        worker.backward()
        worker.seal()
    assert len(worker.reducer._buffers) == 1


def test_a_buffer_without_acknowledgement_is_not_written(worker: PushingWorker) -> None:
    worker.overlap.close()
    worker.begin()
    worker.backward()
    worker.reducer.seal(worker.binding.made(), worker.report())
    before = [dict(buffer.frames) for buffer in worker.reducer._buffers._buffers]
    contents = [{index: bytes(frame) for index, frame in buffer.items()} for buffer in before]
    for server in worker.servers:
        server.take(ack=False)
        server.drop()  # the server reads nothing more, but the push may be repeated
    worker.begin()
    worker.backward()
    worker.reducer.seal(worker.binding.made(), worker.report())
    assert [{i: bytes(f) for i, f in buffer.items()} for buffer in before] == contents
    worker.talk()


def test_a_script_that_changes_its_gradients_stops_the_offers(worker: PushingWorker) -> None:
    for _ in range(12):
        worker.begin()
        worker.backward()
        clipped(worker)
        worker.seal()
        worker.check()
        for server in worker.servers:
            server.drop()
    worker.begin()
    worker.backward()
    worker.talk()
    assert not any(server.pushes for server in worker.servers)


def test_the_buffer_of_a_kept_turn_is_not_written_until_the_next_turn(worker: PushingWorker) -> None:
    worker.overlap.close()
    worker.begin()
    worker.backward()
    worker.seal()
    first = held(worker)
    for keep in (True, False):
        for server in worker.servers:
            server.drop()  # nobody reads the buffer, and its push is answered
        worker.slot += 1
        worker.reducer.begin(worker.lease(Fence(1, worker.slot)), 1.0, keep=keep)
        worker.binding.drop_gradients()
        worker.backward()
        worker.seal()
        if keep:
            moved(worker)
            worker.reducer.seal_again(worker.report(), kept=True)
            worker.talk()
            assert held(worker) == first
    assert len(worker.reducer._buffers) == 2
