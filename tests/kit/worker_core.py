"""A worker core for tests; the test plays its coordinator and its servers."""

from __future__ import annotations

from tests.kit.core import (
    BLOCKS,
    HYPER,
    fence,
    frame,
    segment,
    sent,
    state_of,
    turn_of,
)

from paceline.core.effects import Send
from paceline.core.message_parts import PUSH_NBYTES
from paceline.core.worker.dispatch import Connect, Fill, WorkerCore
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Grant,
    Message,
    PhaseOver,
    Prepared,
    Pull,
    PullReply,
    Push,
    Register,
    Seal,
    Sealed,
    Turn,
)
from paceline.types import INIT_STEP, UNLIMITED, Placement, Segment

SSP = segment(slots=1, window=3)


ASP = segment(slots=1, window=UNLIMITED)


class WorkerKit:
    """A worker of a job whose two blocks are on two servers."""

    def __init__(self, part_nbytes: int = PUSH_NBYTES) -> None:
        self.core = WorkerCore(Register(1, "worker", "worker-0", 1, "here"), resend_s=2.0, part_nbytes=part_nbytes)
        self.core.place(self.prepared(1, "s0", "s1"))
        self.now = 0.0

    def prepared(self, epoch: int, *owners: str) -> Prepared:
        return Prepared(0, 1, 0, Placement(epoch, owners, dict.fromkeys(owners, "there")))

    def hear(
        self, message: Message, sender: str = "coordinator", payload: tuple[object, ...] = ()
    ) -> list[Send | Fill | Connect]:
        return self.core.handle(sender, message, payload, self.now)

    def grant(
        self, step: int, counter: int = 5, *, of: Segment | None = None, slots: int = 2, req: int | None = None
    ) -> list[Send | Fill | Connect]:
        """Answer the open turn with a grant."""
        seg = None if step == INIT_STEP else of or segment()
        return self.hear(Grant(req or turn_of(self.core).req, 1, 0, 1, step, 0, slots, fence(counter), seg, False))

    def over(self, version: int, *, finished: bool = False) -> list[Send | Fill | Connect]:
        return self.hear(PhaseOver(turn_of(self.core).req, 1, 0, 1, 0, version, version, finished, True, {}))

    def fill(self, out: list[Send | Fill | Connect], version: int) -> None:
        """Answer the pulls in `out` as the servers."""
        for send in out:
            if isinstance(send, Send) and isinstance(send.message, Pull):
                self.hear(PullReply(send.message.req, 0, version, version, ()), sender=send.to)

    def computing(self, step: int = 0, counter: int = 5, *, of: Segment | None = None, slots: int = 2) -> None:
        """Bring the worker to the point where it computes a slot: leased, and its state read."""
        self.core.ask(self.now, 0)
        self.fill(self.grant(step, counter, of=of, slots=slots), step)
        assert state_of(self.core) == WorkerState.COMPUTING

    def push(self, *, seal: bool = True) -> list[Push]:
        parts = {
            server: ((frame(blocks[0]),), ("gradient",), Seal(1.0, (), ((blocks[0], 0),)) if seal else None)
            for server, blocks in self.core.model.by_server.items()
        }
        return sent(self.core.push(self.now, parts, report=self.report() if seal else None), Push)

    def report(self) -> Sealed:
        return self.core.turn.report(1.0, HYPER, {}, 0.1)

    def seal(self) -> Turn:
        (turn,) = sent(self.core.sealed(self.now, self.report()), Turn)
        return turn


def part(req: int, version: int, number: int, parts: int = 2) -> PullReply:
    return PullReply(req, 0, version, version, (frame(0),), number, parts)


def worker_core() -> WorkerCore:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here"))
    core.place(Prepared(1, 1, 0, Placement(1, ("server-0",) * len(BLOCKS), {"server-0": "there"})))
    return core


def grant(core: WorkerCore, *, generation: int = 1, step: int = 0, counter: int = 5) -> Grant:
    return Grant(turn_of(core).req, generation, 0, 1, step, 0, 2, fence(counter), segment(), False)
