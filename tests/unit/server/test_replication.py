"""Servers with copies of each other's blocks over real ports: sums, promotion and whole copies have equal bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kit.server import BLOCKS, content
from tests.kit.server_cluster import LANES, Cluster, ports

from paceline.messages import (
    BlockFrame,
    Copied,
    CopyOver,
    Push,
    PushAck,
    Ready,
    Saved,
    Seal,
    Unreachable,
)
from paceline.transport.base import Port
from paceline.transport.limits import LinkLimits
from paceline.types import Fence
from paceline.wire.frames import WireLimits


@pytest.fixture(params=LANES)
def make(request: pytest.FixtureRequest) -> Callable[[str], Port]:
    return ports(request.param)


@pytest.fixture
def cluster(make: Callable[[str], Port], tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(make, 3, tmp_path)
    yield made
    made.close()


MIXED = [n % 3 for n in range(len(BLOCKS))]
NEXT = [[(n + 1) % 3] for n in MIXED]


def test_backups_equal_their_primary_and_one_can_replace_it(cluster: Cluster) -> None:
    cluster.place(MIXED, NEXT)
    for _ in range(4):
        cluster.step()
        cluster.check()
    gone = cluster.nodes[0]
    service = cluster.services.pop(gone)
    service.close()
    service.port.close()
    cluster.place([1 if o == 0 else o for o in MIXED], [[2] if o == 1 else [] for o in MIXED])
    for _ in range(4):
        cluster.step()
        cluster.check()


def test_a_step_is_not_ready_before_every_backup_has_its_sum(cluster: Cluster) -> None:
    cluster.place(MIXED, NEXT)
    cluster.step()
    cluster.services[cluster.nodes[0]].core.replication.set_reach(0.6)
    still = cluster.services.pop(cluster.nodes[1])  # this server does not run any more
    cluster.heard.clear()
    fence, frames = Fence(1, 2), {i: content(cluster.dice, i) for i, o in enumerate(MIXED) if o == 0}
    described = tuple(BlockFrame(i, BLOCKS[i].dtype, BLOCKS[i].numel) for i in frames)
    seal = Seal(1.0, (), tuple((i, 0) for i in frames))
    push = Push(9, 0, cluster.epoch, 0, 0, fence, 0, described, seal)
    cluster.front.send(cluster.nodes[0], push, list(frames.values()))
    cluster.until(PushAck, [cluster.nodes[0]])
    (report,) = cluster.until(Unreachable, [cluster.nodes[0]])
    assert report.peer == cluster.nodes[1]
    assert not [m for _, m in cluster.heard if isinstance(m, Ready)]
    cluster.services[cluster.nodes[1]] = still
    cluster.until(Ready, [cluster.nodes[0]])


def test_a_new_server_gets_a_copy_while_training_goes_on(cluster: Cluster) -> None:
    everything = tuple(range(len(BLOCKS)))
    cluster.place([0] * len(BLOCKS), [[1]] * len(BLOCKS))
    for _ in range(3):
        cluster.step()
    cluster.place([0] * len(BLOCKS), [[1]] * len(BLOCKS), [(2, everything)])
    cluster.step()
    cluster.until(Copied, [cluster.nodes[2]])
    cluster.front.send(cluster.nodes[2], CopyOver(1, 0, cluster.epoch, cluster.nodes[0]))
    cluster.step()
    cluster.place(
        [2] * len(BLOCKS), [[0]] * len(BLOCKS)
    )  # the new server becomes the primary, and server 1 loses its copies
    for _ in range(3):
        cluster.step()
        cluster.check()
    assert cluster.nodes[1] not in cluster.copies(0)


@pytest.mark.parametrize("lane", LANES)
def test_no_message_is_larger_than_a_lane_carries(lane: str, tmp_path: Path) -> None:
    """A message is at most as large as one block here, and sums and copies are far larger."""
    limits = LinkLimits(wire=WireLimits(max_frames=1, max_message_nbytes=max(b.nbytes for b in BLOCKS)))
    cluster = Cluster(ports(lane, limits), 3, tmp_path, part_nbytes=1)
    try:
        everything = tuple(range(len(BLOCKS)))
        cluster.place([0] * len(BLOCKS), [[1]] * len(BLOCKS))
        for _ in range(3):
            cluster.step(apart=True)
            cluster.check()
        cluster.place([1] * len(BLOCKS), [[0]] * len(BLOCKS), [(2, everything)])
        cluster.step(apart=True)
        cluster.until(Copied, [cluster.nodes[2]])
        cluster.step(apart=True)
        cluster.place([2] * len(BLOCKS), [[1]] * len(BLOCKS))
        for _ in range(3):
            cluster.step(apart=True)
            cluster.check()
    finally:
        cluster.close()


def test_only_primaries_write_checkpoints(cluster: Cluster) -> None:
    cluster.place([0 if n % 2 else 1 for n in range(len(BLOCKS))], [[2]] * len(BLOCKS))
    cluster.step()
    cluster.step(save=True)
    saved = cluster.until(Saved, cluster.nodes[:2], lambda m: m.version == 1)
    assert all(not one.problem for one in saved)
    assert sorted(b for one in saved for file in one.files for b in file.blocks) == list(range(len(BLOCKS)))
    assert not [n for n, m in cluster.heard if isinstance(m, Saved) and n == cluster.nodes[2]]
