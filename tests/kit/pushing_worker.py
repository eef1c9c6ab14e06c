"""A worker in the middle of a turn, and servers that keep what it pushes."""

from __future__ import annotations

import torch
from torch import nn

from paceline.blocks.tensors import piece_of, tensor_of
from paceline.core.effects import Send
from paceline.core.server.attempt import Attempt
from paceline.messages import Grant, Prepared, Pull, PullReply, Push, PushAck, Register, Sealed, Turn
from paceline.reducers.servers import ServersReducer
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub, InprocPort
from paceline.types import COORDINATOR, Fence, Placement, Segment
from paceline.worker.binding import Binding
from paceline.worker.overlap import Overlap
from paceline.worker.session import Session

SEGMENT = Segment(0, 0, 0, 0, 100, 1, 6400, 1, 64, True, False, 0, "bsp")


def three_layers() -> nn.Module:
    """A model of several blocks, with the same weights at each call."""
    torch.manual_seed(0)
    layers = [nn.Linear(40, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)]
    return nn.Sequential(*layers)


class PushServer:
    """Keeps what arrives, as a real server does, and a copy of every frame as it was on arrival."""

    def __init__(self, port: InprocPort) -> None:
        self.port = port
        self.attempt = Attempt(0)
        self.pushes: list[Push] = []
        self.frames: list[tuple[memoryview, bytes]] = []

    def take(self, *, ack: bool = True) -> None:
        while (event := self.port.recv(0)) is not None:
            if not isinstance(event, Received) or not isinstance(event.message, Push):
                continue
            push = event.message
            self.pushes.append(push)
            self.frames += [(frame, bytes(frame)) for frame in event.frames]
            for declared, frame in zip(push.blocks, event.frames, strict=True):
                if declared.rev > self.attempt.revs.get(declared.block, -1):
                    self.attempt.revs[declared.block] = declared.rev
                    self.attempt.payloads[declared.block] = frame
            self.attempt.seal = push.seal or self.attempt.seal
            if ack:
                self.port.send(event.peer, PushAck(push.req, "held"))

    def drop(self) -> None:
        self.attempt = Attempt(0)
        self.frames.clear()
        self.pushes.clear()


class PushingWorker:
    """A worker with two servers; the test decides when it reads and pushes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.binding = Binding(model, self.optimizer, None)
        hub = InprocHub()
        self.hub = hub
        self.servers = [PushServer(hub.port(f"server-{i}/1", listen=f"server-{i}")) for i in range(2)]
        self.port = hub.port("worker-0/1")
        self.session = Session(self.port, Register(1, "worker", "worker-0", 1, "here"), timeout_s=5.0)
        owners = tuple(f"server-{i % 2}/1" for i in range(len(self.binding.blocks)))
        addresses = {s.port.node: s.port.address or "" for s in self.servers}
        self.session.place(Prepared(1, 1, 0, Placement(1, owners, addresses)))
        self.reducer = ServersReducer(self.session, self.binding)
        self.overlap = Overlap(self.binding, self.reducer, lambda: True)
        self.slot = -1

    def begin(self, weight: float = 1.0, *, keep: bool = False) -> None:
        self.slot += 1
        grant = self.lease(Fence(1, self.slot))
        self.binding.begin_turn()
        self.reducer.begin(grant, weight, keep=keep)
        self.overlap.begin()

    def lease(self, fence: Fence) -> Grant:
        """Grant the slot to the worker; the servers answer its reads with no blocks."""
        core = self.session.core
        (ask,) = core.ask(0.0, 0)
        assert isinstance(ask.message, Turn)
        epoch = core.model.epoch
        grant = Grant(ask.message.req, 1, 0, epoch, 0, self.slot, 9, fence, SEGMENT, True)
        for send in core.handle(COORDINATOR, grant, (), 0.0):
            assert isinstance(send, Send)
            assert isinstance(send.message, Pull)
            core.handle(send.to, PullReply(send.message.req, 0, 0, 0, ()), (), 0.0)
        return grant

    def backward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.randn(4, 40)).pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def seal(self, *, empty: bool = False) -> None:
        self.reducer.seal(None if empty else self.binding.made(), self.report(0.0 if empty else 1.0))
        self.overlap.end()
        self.talk()

    def report(self, weight: float = 1.0) -> Sealed:
        """The report of the slot that is leased now."""
        return self.session.core.turn.report(weight, (), {}, 0.0)

    def talk(self) -> None:
        for server in self.servers:
            server.take()
        while (event := self.port.recv(0)) is not None:
            if isinstance(event, Received):
                self.session.core.handle(event.peer, event.message, event.frames, 0.0)

    def check(self) -> None:
        """Check that the servers count the current gradient, and that no frame has changed since it arrived."""
        covered = set()
        for server in self.servers:
            assert server.attempt.arrived
            assert server.attempt.seal is not None
            absent = server.attempt.seal.absent
            for index, _ in server.attempt.seal.revs:
                covered.add(index)
                block = self.binding.blocks[index]
                content = tensor_of(server.attempt.payloads[index], block.dtype)  # type: ignore[arg-type]
                for piece in block.pieces:
                    grad = self.binding.entries[piece.tensor].tensor.grad
                    assert (grad is None) == (piece.tensor in absent)
                    expected = torch.full((piece.numel,), -0.0)
                    if grad is not None:
                        expected = grad.detach().reshape(-1)[piece.start :][: piece.numel]
                    here = piece_of(content, piece)
                    assert torch.equal(here.view(torch.int32), expected.view(torch.int32))
            for frame, before in server.frames:
                assert bytes(frame) == before, "a lent frame changed"
        carrying = {
            b.index
            for b in self.binding.blocks
            if any(self.binding.entries[p.tensor].tensor.grad is not None for p in b.pieces)
        }
        assert covered == carrying

    def close(self) -> None:
        self.overlap.close()
        for port in [self.port, *(s.port for s in self.servers)]:
            port.close()


def nothing(worker: PushingWorker) -> None:
    """Change no gradient."""


def clipped(worker: PushingWorker) -> None:
    """Clip the gradients after backward, as many scripts do."""
    torch.nn.utils.clip_grad_norm_(worker.model.parameters(), 1e-3)


def taken_away(worker: PushingWorker) -> None:
    """Set one gradient to None."""
    worker.binding.parameters[2].tensor.grad = None
