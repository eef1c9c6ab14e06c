"""A job whose workers hold the blocks: a coordinator core, and member cores, for tests that play the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.kit.core import BLOCKS, HYPER, CoordinatorKit, Recorder, frame, model, plan, segment, sent

from paceline.core.effects import Effect, Send
from paceline.core.server.contributions import Contribution
from paceline.core.server.dispatch import ServerCore
from paceline.messages import Assign, Close, Committed, Copied, Grant, Message, Push, Ready, Seal, Sealed
from paceline.types import INIT_STEP, Commit, Fence, NodeId, Placement


def group_job(
    workers: int = 2, slots: int | None = 2, data_len: int = 12, epochs: int = 1, **changes: object
) -> CoordinatorKit:
    """A job of `workers` in a group, at version 0, with no leases; two samples of `data_len` are a slot."""
    kit = CoordinatorKit(workers=workers, servers=workers, slots=slots, mode="allreduce", collective=True, **changes)  # type: ignore[arg-type]
    kit.start(data_len=data_len, epochs=epochs)
    grant = kit.lease(kit.workers[0])
    assert grant.step == INIT_STEP
    commit_step(kit, {kit.workers[0]: grant})
    assert kit.core.version == 0
    return kit


def report_of(grant: Grant) -> Sealed:
    return Sealed(grant.step, grant.slot, grant.fence, 1.0, HYPER, {}, 0.1)


def commit_step(kit: CoordinatorKit, grants: dict[NodeId, Grant]) -> list[Effect]:
    """Let every member of the group report the step of `grants` as ready, with the slots of its own worker."""
    effects: list[Effect] = []
    placement = kit.core.placement
    assert placement is not None
    fences = tuple(grant.fence for grant in sorted(grants.values(), key=lambda grant: grant.slot))
    step = next(iter(grants.values())).step
    revision = 0 if step == INIT_STEP else kit.core.schedule.revision_of(step)
    for node in placement.group:
        mine = tuple(report_of(grant) for worker, grant in grants.items() if worker[7:] == node[7:])
        effects += kit.say(node, Ready(kit.core.incarnation, placement.epoch, step, fences, 0, 0, (), mine, revision))
    return effects


def closings(effects: Sequence[Effect]) -> list[Close]:
    return sent(effects, Close)


class MemberKit:
    """The core of member 0 of a group; the test plays all others."""

    def __init__(self, size: int = 2, slots: int = 2, *, near: bool = False) -> None:
        self.near = near
        self.nodes = [f"member-{n}" for n in range(size)]
        self.store = Recorder()
        self.core = ServerCore("member-0", lambda: self.store)
        self.epoch = 0
        self.requests = 0
        self.group(self.nodes)
        self.tell(plan(segment(slots=slots)))
        self.close(INIT_STEP, (1, "member-1"))
        if near:
            self.push(INIT_STEP, 0, 1)
        else:
            self.core.contributions.reduced(reduced(self.core.contributions.take(), (0, 1)), 0.0)
        self.commit(0, INIT_STEP, 1)

    def group(self, nodes: Sequence[NodeId], at: int = -1) -> list[Send]:
        """Begin the next epoch, with the group `nodes`."""
        self.epoch += 1
        owners = (nodes[0],) * len(BLOCKS)
        backups = (tuple(nodes[1:]),) * len(BLOCKS) if len(nodes) > 1 else ()
        placement = Placement(self.epoch, owners, dict.fromkeys(nodes, "there"), backups, (), tuple(nodes), self.near)
        return self.tell(Assign(1, 0, placement, model(), BLOCKS, one_attempt=True, at=at))

    def tell(self, message: Message) -> list[Send]:
        return self.core.handle("coordinator", message, (), 0.0)

    def close(self, step: int, *slots: tuple[int, NodeId]) -> list[Send]:
        """Close a step: for each slot, the counter of its fence, and its member."""
        fences, members = tuple(Fence(1, counter) for counter, _ in slots), tuple(node for _, node in slots)
        return self.tell(Close(1, 0, self.epoch, step, fences, members))

    def push(self, step: int, slot: int, counter: int, *, ahead: int = 0) -> list[Send]:
        self.requests += 1
        frames = tuple(frame(b.index, 0) for b in BLOCKS)
        seal = Seal(1.0, (), tuple((b.index, 0) for b in BLOCKS))
        report = Sealed(step, slot, Fence(1, counter), 1.0, HYPER, {}, 0.1)
        push = Push(self.requests, 0, self.epoch, step, slot, Fence(1, counter), step, frames, seal, 1.0, report, ahead)
        return self.core.handle("worker-0", push, tuple(f"{counter}:{b.index}" for b in BLOCKS), 0.0)

    def commit(self, version: int, step: int, *counters: int) -> list[Send]:
        fences = tuple(Fence(1, counter) for counter in counters)
        made = Commit(0, version, step, fences, HYPER, 1.0, False, 0, 0)
        return self.tell(Committed(1, self.epoch, made))


def reduced(taken: Contribution | None, *added: tuple[int, int]) -> Contribution:
    """`taken` after the group has reduced it: the members have `added` (slot, counter of the fence)."""
    assert taken is not None
    return replace(taken, part=tuple((slot, Fence(1, counter)) for slot, counter in added))


MEMBERS = ("member-0", "member-1")


def moving_job(mode: str = "bsp@1,allreduce", slots: int | None = 2, **changes: object) -> CoordinatorKit:
    """A job of two workers with members and two servers, at version 0, with no leases; it begins on servers."""
    kit = CoordinatorKit(workers=2, servers=2, slots=slots, mode=mode, collective=True, **changes)  # type: ignore[arg-type]
    kit.servers = ["server-0", "server-1"]
    for member in MEMBERS:
        kit.say(member, kit.registration("server", member))
    kit.start(data_len=80).initialise()
    return kit


def copy_blocks(kit: CoordinatorKit) -> list[Effect]:
    """Let every holder that makes copies report that they are complete, until no further copy is to be made."""
    effects: list[Effect] = []
    while (placement := kit.core.placement) is not None and placement.joining:
        for node, blocks in placement.joining:
            for source in {placement.owners[block] for block in blocks}:
                effects += kit.say(node, Copied(kit.core.incarnation, placement.epoch, source))
        kit.now += 0.3
        for node in (*kit.servers, *MEMBERS, *kit.workers):
            kit.core.tables.members.seen(node, kit.now)
        effects += kit.wrote(kit.core.tick(kit.now))
    return effects


def move_on(kit: CoordinatorKit, seconds: float = 0.5) -> list[Effect]:
    """Let time pass in which every process is heard."""
    kit.now += seconds
    for node in (*kit.servers, *MEMBERS, *kit.workers):
        kit.core.tables.members.seen(node, kit.now)
    return kit.wrote(kit.core.tick(kit.now))
