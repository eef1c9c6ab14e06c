"""A primary's request that does not reach a copy is repeated, and the silence is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.kit.server import BLOCKS
from tests.kit.server_cluster import LANES, Cluster, ports

from paceline.errors import PeerLostError
from paceline.messages import Copied, CopyOver, CopyPart, Message, Reachable, Replicate, Unreachable
from paceline.transport.base import Delivery, Frame, Port
from paceline.types import NodeId

EVERYTHING = tuple(range(len(BLOCKS)))
ALONE: list[int] = [0] * len(BLOCKS)
NO_BACKUPS: list[list[int]] = [[] for _ in BLOCKS]
KINDS = pytest.mark.parametrize("kind", [Replicate, CopyPart])


class Lossy:
    """A port that loses the last frame of some messages, and whose queue is full for others."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.loses: Callable[[Message], bool] = lambda message: False
        self.refuses: Callable[[Message], bool] = lambda message: False
        self.lost: list[type[Message]] = []
        self.refused: list[type[Message]] = []
        self.told: list[Message] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.port, name)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        self.told.append(message)
        if self.refuses(message):
            self.refused.append(type(message))
            self.port.disconnect(peer)
            raise PeerLostError(peer, "its queue is full")
        if self.loses(message):
            self.lost.append(type(message))
            frames = frames[:-1]
        return self.port.send(peer, message, frames, later=later)


class Pair:
    """Two servers: one is the primary of all blocks, the other has copies or is sent them."""

    def __init__(self, lane: str, folder: Path) -> None:
        make, self.lossy = ports(lane), dict[str, Lossy]()

        def wrapped(node: str) -> Port:
            self.lossy[node] = Lossy(make(node))
            return cast(Port, self.lossy[node])

        self.cluster = Cluster(wrapped, 2, folder)
        first, self.second = self.cluster.nodes
        self.way = self.lossy[first]
        self.core = self.cluster.services[first].core

    def begin(self, kind: type[Message]) -> None:
        """Prepare the servers so that the next request is a sum, or a copy."""
        self.cluster.place(ALONE, [[1] for _ in BLOCKS])
        self.cluster.step()
        if kind is CopyPart:
            self.cluster.place(ALONE, NO_BACKUPS)
        for _ in range(3):
            self.cluster.turn()

    def go_on(self, kind: type[Message]) -> None:
        """Send the request, and wait until all copies are complete and equal."""
        cluster = self.cluster
        if kind is CopyPart:
            cluster.place(ALONE, NO_BACKUPS, [(1, EVERYTHING)])
            cluster.until(Copied, [self.second])
            cluster.front.send(self.second, CopyOver(1, 0, cluster.epoch, cluster.nodes[0]))
            cluster.place(ALONE, [[1] for _ in BLOCKS])
        cluster.step()
        cluster.check()


@KINDS
@pytest.mark.parametrize("lane", LANES)
def test_a_request_that_a_full_queue_refused_is_repeated(lane: str, kind: type[Message], tmp_path: Path) -> None:
    """The session ends; the next session repeats unanswered requests at once."""
    pair = Pair(lane, tmp_path)
    try:
        pair.begin(kind)
        pair.way.refuses = lambda message: isinstance(message, kind) and len(pair.way.refused) < 2
        pair.go_on(kind)
        assert pair.way.refused == [kind, kind]
    finally:
        pair.cluster.close()


@KINDS
@pytest.mark.parametrize("lane", LANES)
def test_a_request_that_the_other_side_refused_is_repeated(lane: str, kind: type[Message], tmp_path: Path) -> None:
    """The session stays open without an answer, so the primary repeats the request."""
    pair = Pair(lane, tmp_path)
    try:
        pair.begin(kind)
        pair.way.loses = lambda message: isinstance(message, kind) and not pair.way.lost
        pair.go_on(kind)
        assert pair.way.lost == [kind]
        assert pair.lossy[pair.second].counters.refused == {"frame-count": 1}  # type: ignore[attr-defined]
    finally:
        pair.cluster.close()


def test_a_server_that_refuses_every_request_is_reported_until_it_answers(tmp_path: Path) -> None:
    pair = Pair("inproc", tmp_path)
    try:
        pair.begin(Replicate)
        pair.core.replication.set_reach(0.6)

        def is_reported() -> bool:
            return any(isinstance(m, Unreachable) and m.peer == pair.second for m in pair.way.told)

        pair.way.loses = lambda message: isinstance(message, Replicate) and not is_reported()
        pair.go_on(Replicate)
        assert len(pair.way.lost) >= 1
        assert [m.peer for m in pair.way.told if isinstance(m, Reachable)] == [pair.second]
    finally:
        pair.cluster.close()
