"""A server core in a placement with backups and joining copies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tests.kit.core import BLOCKS, HYPER, Recorder, fence, frame, model, plan, segment, sent

from paceline.core.effects import Send
from paceline.core.message_parts import PART_NBYTES
from paceline.core.server.dispatch import ServerCore
from paceline.messages import (
    Assign,
    Committed,
    Message,
    Push,
    Replicate,
    Replicated,
    Seal,
    SumMeta,
)
from paceline.types import INIT_STEP, Commit, NodeId, Placement

ALL = len(BLOCKS)


ADDRESSES = {"s0": "at s0", "s1": "at s1", "s2": "at s2"}


def placement(
    epoch: int, *copies: tuple[NodeId, ...], joining: tuple[tuple[NodeId, tuple[int, ...]], ...] = ()
) -> Placement:
    """Return a placement from the copies of each block, primary first; the last entry is for all further blocks."""
    sets = [copies[min(b, len(copies) - 1)] for b in range(ALL)]
    return Placement(epoch, tuple(s[0] for s in sets), ADDRESSES, tuple(s[1:] for s in sets), joining)


class Server:
    """A server core in a placement; the test plays all other members."""

    def __init__(self, node: NodeId, where: Placement, *, part_nbytes: int = PART_NBYTES, **assign: object) -> None:
        self.stores: list[Recorder] = []
        self.core = ServerCore(node, self._make, part_nbytes=part_nbytes)
        self.now = 0.0
        self.tell(self.assign(where, **assign))
        self.tell(plan(segment(slots=1, end_step=20)))

    def _make(self) -> Recorder:
        self.stores.append(Recorder())
        return self.stores[-1]

    @staticmethod
    def assign(where: Placement, **changes: object) -> Assign:
        return msgspec.structs.replace(Assign(1, 0, where, model(), BLOCKS, False), **changes)

    def tell(self, message: Message) -> list[Send]:
        return self.core.handle("coordinator", message, (), self.now)

    def say(self, sender: NodeId, message: Message, payload: Sequence[object] = ()) -> list[Send]:
        return self.core.handle(sender, message, payload, self.now)

    def push(self, step: int, counter: int, *, epoch: int = 1) -> list[Send]:
        mine = list(self.core.own.blocks)
        seal = Seal(1.0, (), tuple((b, 0) for b in mine))
        push = Push(counter, 0, epoch, step, 0, fence(counter), step, tuple(frame(b) for b in mine), seal)
        return self.say("worker-0", push, tuple(f"{counter}:{b}" for b in mine))

    def commit(self, version: int, counter: int) -> list[Send]:
        row = Commit(0, version, version - 1, (fence(counter),), HYPER, 1.0, False, 0, 0)
        return self.tell(Committed(1, self.core.assignment.epoch, row))

    def replicate(self, sender: NodeId, step: int, counter: int, *, epoch: int = 1, **changes: object) -> list[Send]:
        key = fence(counter) if step == INIT_STEP else None
        message = Replicate(counter, 0, epoch, step, key, (fence(counter),), SumMeta(1.0, 1), ())
        return self.say(sender, msgspec.structs.replace(message, **changes))

    def begin(self) -> Server:
        """Commit version 0 of its own blocks and of its copies."""
        asked = sent(self.push(INIT_STEP, 1), Replicate) if self.core.own.blocks else []
        for target, message in zip(self.core.replication.targets, asked, strict=True):
            self.say(target.to, Replicated(message.req, 0, 1))
        for primary in self.core.backups.synced:
            self.replicate(primary, INIT_STEP, 1)
        self.commit(0, 1)
        assert self.core.versions.applied == 0
        return self


def joined() -> tuple[Server, Server, list[Send]]:
    """A primary, a joining server, and what the primary sends when the copy begins."""
    primary = Server("s0", placement(1, ("s0",))).begin()
    joiner = Server("s1", placement(1, ("s0",)), at=0)
    where = placement(2, ("s0",), joining=(("s1", tuple(range(ALL))),))
    joiner.tell(joiner.assign(where, at=0))
    return primary, joiner, primary.tell(primary.assign(where, at=0))
