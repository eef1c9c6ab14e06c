"""Real servers over real ports; the test plays the coordinator and the only worker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from tests.kit.fake_coordinator import TOKEN
from tests.kit.server import BLOCKS, Slot, bits_of, commit, content, model

from paceline.checkpoint.storage import LocalStorage
from paceline.core.message_parts import PART_NBYTES
from paceline.messages import (
    Assign,
    Beat,
    BlockFrame,
    Committed,
    Message,
    Plan,
    Push,
    Ready,
    Register,
    Seal,
)
from paceline.runtime.service_loop import pump
from paceline.server.dense_store import DenseStore
from paceline.server.service import ServerService
from paceline.transport.base import PeerUp, Port, Received
from paceline.transport.inproc import InprocHub
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.port import ZmqPort
from paceline.types import INIT_STEP, Fence, NodeId, Placement, Segment

M = TypeVar("M", bound=Message)
SPEC = model("Adam", {"lr": 0.01})
PLAN = Segment(0, 0, 0, 0, 100, 1, 100, 1, 1, False, False, 0, "bsp")
PATIENCE_S = 20.0


class Cluster:
    """Some real servers; the test plays the coordinator and the only worker."""

    def __init__(
        self, make: Callable[[str], Port], count: int, folder: Path, *, part_nbytes: int = PART_NBYTES
    ) -> None:
        self.front = make("coordinator/1")
        self.ports = [make(f"server-{n}/{n}") for n in range(count)]
        self.nodes = [port.node for port in self.ports]
        self.services: dict[NodeId, ServerService] = {}
        self.heard: list[tuple[NodeId, Message]] = []
        self.version, self.epoch, self.req = -1, 0, 0
        self.placement = Placement(0, (), {})
        self.dice = random.Random(count)
        for port in self.ports:
            intro = Register(1, "server", port.node.split("/")[0], 1, "here", port.address)
            self.services[port.node] = ServerService(port, intro, storage=LocalStorage(folder), part_nbytes=part_nbytes)
            assert self.front.address is not None
            port.connect(self.front.address)
        self.wait(lambda: {n for n, m in self.heard if isinstance(m, Register)} == set(self.nodes))

    def close(self) -> None:
        for service in self.services.values():
            service.close()
        for port in (self.front, *self.ports):
            port.close()

    def turn(self) -> None:
        for node, service in self.services.items():
            pump(service, service.port)
            service.on_tick(time.monotonic())
            assert service.ended is None, node
        while (event := self.front.recv(0)) is not None:
            match event:
                case Received(peer=peer, message=message):
                    self.heard.append((peer, message))
                case PeerUp():
                    pass

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, self.heard[-30:]
            self.turn()
            time.sleep(0.001)

    def until(self, kind: type[M], senders: Sequence[NodeId], fits: Callable[[M], bool] = lambda _: True) -> list[M]:
        """Wait for one such message from each."""

        def found() -> dict[NodeId, M]:
            return {n: m for n, m in self.heard if n in senders and isinstance(m, kind) and fits(m)}

        self.wait(lambda: found().keys() == set(senders))
        return list(found().values())

    # ------------------------------------------------------------ the coordinator

    def place(
        self,
        owners: Sequence[int],
        backups: Sequence[Sequence[int]],
        joining: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        """Begin a new epoch; servers are given by number."""
        self.epoch += 1
        self.heard.clear()
        self.placement = Placement(
            self.epoch,
            tuple(self.nodes[o] for o in owners),
            {port.node: str(port.address) for port in self.ports},
            tuple(tuple(self.nodes[b] for b in row) for row in backups),
            tuple((self.nodes[to], blocks) for to, blocks in joining),
        )
        begun = (max(0, self.version), ())
        message = Assign(1, 0, self.placement, SPEC, BLOCKS, True, at=self.version, begun=begun)
        for node in self.services:
            self.front.send(node, message)
            self.front.send(node, Plan(1, (PLAN,), revision=1))
        alive = [n for n in self.placement.holders if n in self.services]
        self.until(Beat, alive, lambda beat: beat.epoch == self.epoch)

    def step(self, *, save: bool = False, apart: bool = False) -> None:
        """Push, sum and commit one slot of one worker; with `apart`, each block is a push of its own."""
        step = self.version if self.version >= 0 else INIT_STEP
        fence = Fence(1, self.version + 2)
        slot = Slot(self.dice)
        frames = {b.index: content(self.dice, b.index) for b in BLOCKS} if step == INIT_STEP else slot.frames
        absent = () if step == INIT_STEP else tuple(sorted(slot.absent))
        owners = sorted(set(self.placement.owners))
        self.heard.clear()
        for owner in owners:
            mine = [i for i, o in enumerate(self.placement.owners) if o == owner and i in frames]
            seal = Seal(1.0 if step == INIT_STEP else slot.weight, absent, tuple((i, 0) for i in mine))
            runs = [[i] for i in mine] if apart and mine else [mine]
            for run in runs:
                described = tuple(BlockFrame(i, BLOCKS[i].dtype, BLOCKS[i].numel) for i in run)
                self.req += 1
                ends = seal if run is runs[-1] else None
                message = Push(self.req, 0, self.epoch, step, 0, fence, self.version, described, ends)
                self.front.send(owner, message, [frames[i] for i in run])
        self.until(Ready, owners, lambda ready: ready.step == step)
        self.version += 1
        row = msgspec.structs.replace(commit(SPEC, self.version, step), fences=(fence,))
        for node in self.services:
            self.front.send(node, Committed(1, self.epoch, row, save=save))
        alive = [n for n in self.placement.holders if n in self.services]
        self.wait(lambda: all(self.services[n].core.versions.applied == self.version for n in alive))

    def copies(self, block: int) -> dict[NodeId, dict[str, bytes]]:
        """Return the bits of a block on every server."""
        found = {}
        for node, service in self.services.items():
            groups = [service.core.own, *service.core.backups.synced_groups]
            for store in (g.store for g in groups if block in g.blocks):
                assert isinstance(store, DenseStore)
                bits = bits_of(store.snapshot())
                found[node] = {name: value for name, value in bits.items() if name.split("/")[0] == str(block)}
        return found

    def check(self) -> None:
        """Check that all copies of every block exist and are equal."""
        for block in range(len(BLOCKS)):
            found = self.copies(block)
            assert set(self.placement.copies(block)) <= found.keys()
            assert len({tuple(sorted(bits.items())) for bits in found.values()}) == 1, f"block {block}"


def ports(lane: str, limits: LinkLimits | None = None) -> Callable[[str], Port]:
    if lane == "inproc":
        hub = InprocHub(strict=True, limits=limits)
        return lambda node: hub.port(node, listen=node.replace("/", "-"))
    return lambda node: ZmqPort(node, TOKEN, listen="127.0.0.1", local=lane == "local", limits=limits)


LANES = ["inproc", "local", "tcp"]
