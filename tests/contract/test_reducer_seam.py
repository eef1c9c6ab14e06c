"""The reducer seam: `servers` keeps the contract, and a reducer of one class trains a script through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from tests.contract.reducer_contract import Harness, ReducerContract
from tests.kit.leasing_coordinator import LeasingCoordinator
from tests.kit.line import error, line, points, weights

from paceline.blocks.tensors import piece_of, tensor_of
from paceline.core.effects import Send
from paceline.core.server.attempt import Attempt
from paceline.core.worker.turn import Task
from paceline.messages import (
    BlockFrame,
    Grant,
    JobArgs,
    Prepared,
    Pull,
    PullReply,
    Push,
    PushAck,
    Register,
    Sealed,
    Turn,
)
from paceline.reducers.base import Made, Reducer
from paceline.reducers.servers import ServersReducer
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub
from paceline.types import COORDINATOR, BlockSpec, Fence, Placement, Segment
from paceline.worker.binding import Binding
from paceline.worker.job import Job
from paceline.worker.session import Session

INTRODUCTION = Register(1, "worker", "worker-0", 1, "here", None, JobArgs(3, "bsp", 1, 1))


SEGMENT = Segment(0, 0, 0, 0, 100, 1, 6400, 1, 64, True, False, 0, "bsp")


class FakeServer:
    """Keeps pushed blocks by attempt and answers reads from `contents`, whenever the worker waits."""

    def __init__(self, hub: InprocHub, number: int) -> None:
        self.port = hub.port(f"server-{number}/1", listen=f"server-{number}")
        self.attempts: dict[Fence, Attempt] = {}
        self.contents: dict[int, memoryview] = {}
        hub.add_pump(self.pump)

    def pump(self) -> bool:
        busy = False
        while (event := self.port.recv(0)) is not None:
            busy = True
            match event:
                case Received(peer=peer, message=Push() as push, frames=frames):
                    self._keep(push, frames)
                    self.port.send(peer, PushAck(push.req, "held"))
                case Received(peer=peer, message=Pull() as pull):
                    assert pull.blocks is not None
                    blocks = tuple(BlockFrame(b, "float32", self.contents[b].nbytes // 4) for b in pull.blocks)
                    reply = PullReply(pull.req, 0, pull.exact, pull.exact, blocks)
                    self.port.send(peer, reply, [self.contents[b] for b in pull.blocks])
        return busy

    def _keep(self, push: Push, frames: Sequence[memoryview]) -> None:
        attempt = self.attempts.setdefault(push.fence, Attempt(0))
        for declared, frame in zip(push.blocks, frames, strict=True):
            if declared.rev > attempt.revs.get(declared.block, -1):
                attempt.revs[declared.block] = declared.rev
                attempt.payloads[declared.block] = frame
        attempt.seal = push.seal or attempt.seal


class ServersHarness(Harness):
    """A session with a coordinator and two servers."""

    def __init__(self) -> None:
        super().__init__()
        hub = InprocHub()
        self._coordinator = LeasingCoordinator(hub)
        self._servers = [FakeServer(hub, i) for i in range(2)]
        self._port = hub.port("worker-0/1")
        self._session = Session(self._port, INTRODUCTION, timeout_s=5.0)
        self._session.open(self._coordinator.address)
        owners = tuple(f"server-{i % 2}/1" for i in range(len(self.binding.blocks)))
        addresses = {s.port.node: s.port.address or "" for s in self._servers}
        self._session.place(Prepared(1, 1, 0, Placement(1, owners, addresses)))
        self._reducer = ServersReducer(self._session, self.binding)
        self._attempts = 0

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def _grant(self, step: int) -> tuple[Grant, list[Send]]:
        core = self._session.core
        (ask,) = core.ask(0.0, 0)
        assert isinstance(ask.message, Turn)
        self._attempts += 1
        grant = Grant(ask.message.req, 1, 0, 1, step, 0, 1, Fence(1, self._attempts), SEGMENT, True)
        return grant, [e for e in core.handle(COORDINATOR, grant, (), 0.0) if isinstance(e, Send)]

    def lease(self, step: int) -> Grant:
        grant, pulls = self._grant(step)
        for pull in pulls:
            assert isinstance(pull.message, Pull)
            self._session.core.handle(pull.to, PullReply(pull.message.req, 0, step, step, ()), (), 0.0)
        return grant

    def counted(self) -> tuple[float, Mapping[int, torch.Tensor]]:
        found: dict[int, torch.Tensor] = {}
        weights = set()
        for server in self._servers:
            server.pump()
            attempt = server.attempts[Fence(1, self._attempts)]
            assert attempt.arrived
            assert attempt.seal is not None
            weights.add(attempt.seal.weight)
            for index, _ in attempt.seal.revs:
                block = self.binding.blocks[index]
                content = tensor_of(attempt.payloads[index], block.dtype)  # type: ignore[arg-type]
                for piece in block.pieces:
                    if piece.tensor not in attempt.seal.absent:
                        numel = self.binding.entries[piece.tensor].tensor.numel()
                        value = found.setdefault(piece.tensor, torch.zeros(numel))
                        value[piece.start : piece.start + piece.numel] = piece_of(content, piece)
        (weight,) = weights
        return weight, found

    def publish(self, values: Sequence[torch.Tensor]) -> Task:
        for block in self.binding.blocks:
            content = torch.zeros(block.numel)
            for p in block.pieces:
                piece_of(content, p).copy_(values[p.tensor].reshape(-1)[p.start : p.start + p.numel])
            for server in self._servers:
                server.contents[block.index] = content.numpy().data.cast("B")
        grant, pulls = self._grant(1)
        self._session.say(pulls)
        return grant

    def close(self) -> None:
        for port in [self._port, *(s.port for s in self._servers)]:
            port.close()
        self._coordinator.close()


class TestServers(ReducerContract):
    def make(self) -> Harness:
        return ServersHarness()


# ---------------------------------------------------------------- a reducer of one class


class InProcessReducer:
    """A dummy reducer: sums the slots in this process, and applies plain SGD when a state is read."""

    wants_offers = True

    def __init__(self, binding: Binding, lr: float) -> None:
        self.sealed: list[tuple[float, dict[int, torch.Tensor]]] = []
        self._turns: list[tuple[float, dict[int, torch.Tensor]]] = []
        self._binding = binding
        self._lr = lr
        self._weight = 1.0
        self._state = {e.number: e.tensor.detach().clone() for e in binding.entries}

    def begin(self, grant: Grant, weight: float, *, keep: bool = False) -> None:
        self._weight = weight

    def offer(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Ignore the offer: the seal has all gradients."""

    def seal(self, made: Made | None, report: Sealed) -> None:
        if made is None:
            self._add(0.0, {})
        else:
            self._add(self._weight, {n: value.detach().clone() for n, value in made.values.items()})

    def seal_again(self, report: Sealed, *, kept: bool = False) -> None:
        content = self._turns[-2 if kept else -1]
        self.sealed.append(content)  # the first lease does not count

    def read(self, task: Task) -> None:
        for entry in self._binding.entries:
            entry.tensor.data.copy_(self._state[entry.number])

    def set_state(self, values: Sequence[torch.Tensor]) -> None:
        self._state = dict(enumerate(values))

    def _add(self, weight: float, gradients: dict[int, torch.Tensor]) -> None:
        self._turns.append((weight, gradients))
        self.sealed.append(self._turns[-1])
        for number, gradient in gradients.items():
            self._state[number] = self._state[number] - self._lr * gradient


class InProcessHarness(Harness):
    def __init__(self) -> None:
        super().__init__()
        self._reducer = InProcessReducer(self.binding, 0.1)

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    def lease(self, step: int) -> Grant:
        return Grant(1, 1, 0, 1, step, 0, 1, Fence(1, step), SEGMENT, True)

    def counted(self) -> tuple[float, Mapping[int, torch.Tensor]]:
        return self._reducer.sealed[-1]

    def publish(self, values: Sequence[torch.Tensor]) -> Task:
        self._reducer.set_state(values)
        return self.lease(1)

    def close(self) -> None:
        pass


class TestInProcess(ReducerContract):
    def make(self) -> Harness:
        return InProcessHarness()


def test_a_script_trains_on_another_reducer() -> None:
    """The script, its loop and its turns are the real ones; there is no server."""
    hub = InprocHub()
    coordinator = LeasingCoordinator(hub, steps=4)
    port = hub.port("worker-0/1")
    session = Session(port, INTRODUCTION, timeout_s=5.0)
    session.open(coordinator.address)
    data = points(32)
    torch.manual_seed(1)
    plain, plain_optimizer = line()
    torch.manual_seed(1)
    model, optimizer = line()
    with Job(
        session,
        JobArgs(3, "bsp", 1, 1),
        lambda failed: None,
        make_reducer=lambda session, binding: InProcessReducer(binding, 0.1),
    ) as job:
        job.prepare(model, optimizer)
        for x, y in job.batches(data, 8, slots=1, shuffle=False):
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
        assert job.step == 4
    for k in range(4):
        plain_optimizer.zero_grad()
        error(plain, data.tensors[0][8 * k : 8 * k + 8], data.tensors[1][8 * k : 8 * k + 8]).backward()
        plain_optimizer.step()
    assert weights(model) == pytest.approx(weights(plain), abs=1e-6)
    assert coordinator.sealed == [(step, 1.0) for step in range(4)]
    port.close()
    coordinator.close()
