"""Rule 21, ahead state is named: what is read before its commit counts only if exactly that is committed.

In lock-step a server that has said *ready* hands out the next version to workers with a lease. It is named by
(incarnation, epoch, version). A new epoch voids it, unless its commit is known. Never with a window, unequal machines,
or an optimizer whose update cannot be undone.

Upheld by:
- `core.server.ahead.Ahead`: which version may be read, and what was handed out
- `core.server.attempts.Attempts.resume`: a push on it counts after its commit
- `core.server.pulls.Pulls.made_ahead`: only pulls for a lease read it
- `core.worker.model_state.ModelState.place`: a new placement voids it
- `worker.turn.ScriptTurn.seal_again`: a turn on a void state is not sealed again
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.kit.core import HYPER, CoordinatorKit, Recorder, fence, frame, segment, sent, turn_of
from tests.kit.placed_server import Server, placement
from tests.kit.worker_core import WorkerKit

from paceline.core.effects import Send
from paceline.core.server.block_store import SumKey
from paceline.core.worker.dispatch import Connect, Fill
from paceline.messages import (
    Committed,
    Failed,
    Grant,
    PlacementRequest,
    Prepared,
    Pull,
    PullReply,
    Push,
    PushAck,
    Ready,
    Refused,
    Replicate,
    Replicated,
    Seal,
    Sealed,
)
from paceline.types import Commit, Hyper


class AheadStore(Recorder):
    """A store that can read the next version early, unless `can_undo` is False."""

    def __init__(self) -> None:
        super().__init__()
        self.can_undo = True
        self._ahead = -1

    @property
    def ahead(self) -> int:
        return self._ahead

    def update_early(self, key: SumKey, hyper: Hyper) -> bool:
        if self.can_undo and hyper:
            self._ahead = key.step + 1
        return self._ahead >= 0

    def apply(self, key: SumKey, commit: Commit) -> None:
        self._ahead = -1
        super().apply(key, commit)

    def drop(self, key: SumKey) -> None:
        self._ahead = -1
        super().drop(key)


class AheadServer(Server):
    """A server whose store can read ahead; one slot a step."""

    def _make(self) -> Recorder:
        self.stores.append(AheadStore())
        return self.stores[-1]

    def sealed_push(
        self, step: int, counter: int, *, ahead: int = 0, epoch: int = 1, hyper: Hyper = HYPER, base: int | None = None
    ) -> list[Send]:
        mine = list(self.core.own.blocks)
        report = Sealed(step, 0, fence(counter), 1.0, hyper, {}, 0.1)
        seal = Seal(1.0, (), tuple((b, 0) for b in mine))
        base = step if base is None else base
        frames = tuple(frame(b) for b in mine)
        push = Push(counter, 0, epoch, step, 0, fence(counter), base, frames, seal, 1.0, report, ahead)
        return self.say("worker-0", push, tuple(f"{counter}:{b}" for b in mine)) + self.core.proceed()

    def pull(self, version: int, req: int = 90, *, ahead: bool = True, epoch: int = 1) -> list[Send]:
        return self.say("worker-0", Pull(req, 0, epoch, version, ahead=ahead))


def alone(**assign: Any) -> AheadServer:
    server = AheadServer("s0", placement(1, ("s0",)), **assign)
    server.begin()
    return server


def replies(sends: list[Send]) -> list[tuple[int, bool]]:
    return [(reply.version, reply.ahead) for reply in sent(sends, PullReply)]


# ---------------------------------------------------------------- what a server hands out


def test_a_server_hands_out_the_next_version_once_it_is_ready_and_only_to_lease_holders() -> None:
    server = alone()
    assert replies(server.pull(1)) == []
    assert replies(server.say("worker-1", Pull(91, 0, 1, 1))) == [], "a pull that is for no lease waits for the commit"
    made = server.sealed_push(0, 5)
    assert sent(made, Ready)
    assert replies(made) == [(1, True)]
    assert replies(server.commit(1, 5)) == [(1, False)], "the other pull is answered by the commit"


def test_ready_is_said_before_the_next_version_is_computed() -> None:
    """The coordinator works while the server computes."""
    server = alone()
    server.pull(1)
    sends = server.sealed_push(0, 5)
    kinds = [type(send.message) for send in sends]
    assert kinds.index(Ready) < kinds.index(PullReply)


def test_with_copies_the_next_version_is_handed_out_only_when_every_copy_has_the_sum() -> None:
    server = AheadServer("s0", placement(1, ("s0", "s1")))
    server.begin()
    server.pull(1)
    sends = server.sealed_push(0, 5)
    (asked,) = sent(sends, Replicate)
    assert replies(sends) == []
    sends = server.say("s1", Replicated(asked.req, 0, 1)) + server.core.proceed()
    assert sent(sends, Ready)
    assert replies(sends) == [(1, True)]


@pytest.mark.parametrize("reason", ["unequal machines", "cannot be undone", "hyper-parameters are not known"])
def test_nothing_is_handed_out_where_the_next_version_is_not_determined(reason: str) -> None:
    server = alone(one_attempt=reason == "unequal machines")
    store = server.core.own.store
    assert isinstance(store, AheadStore)
    store.can_undo = reason != "cannot be undone"
    server.pull(1)
    sends = server.sealed_push(0, 5, hyper=() if reason.startswith("hyper") else HYPER)
    assert replies(sends) == []
    assert replies(server.commit(1, 5)) == [(1, False)]


def test_only_one_version_is_handed_out_ahead() -> None:
    """A sum of the step after is not even begun before the commit."""
    server = alone()
    server.pull(1)
    server.sealed_push(0, 5)
    server.pull(2, 91)
    sends = server.sealed_push(1, 6, ahead=1)
    assert sent(sends, Ready) == []
    assert replies(sends) == []
    sends = server.commit(1, 5) + server.core.proceed()
    assert [ready.step for ready in sent(sends, Ready)] == [1]
    assert replies(sends) == [(2, True)]


# ---------------------------------------------------------------- what a server accepts


def test_a_push_on_a_version_that_was_handed_out_counts_after_its_commit() -> None:
    server = alone()
    server.pull(1)
    server.sealed_push(0, 5)
    (ack,) = sent(server.sealed_push(1, 6, ahead=1), PushAck)
    assert ack.outcome == "held"
    assert [key.step for key, _, _ in server.stores[0].added] == [-1, 0]
    server.commit(1, 5)
    assert [key.step for key, _, _ in server.stores[0].added] == [-1, 0, 1]


def test_a_push_on_a_version_that_nobody_handed_out_is_refused() -> None:
    server = alone()
    server.sealed_push(0, 5)  # nobody has read version 1
    (refused,) = sent(server.sealed_push(1, 6, ahead=1), Refused)
    assert refused.rule == "stale"


def test_a_push_on_weights_whose_commit_never_came_is_refused() -> None:
    """The placement changes between the read and the commit: another sum makes the version."""
    server = alone()
    server.pull(1)
    server.sealed_push(0, 5)
    server.tell(server.assign(placement(2, ("s0",)), at=0))
    assert replies(server.pull(1, 92, epoch=2)) == [], "what was handed out is void"
    (refused,) = sent(server.sealed_push(1, 6, ahead=1), Refused)
    assert refused.rule == "epoch"
    (refused,) = sent(server.sealed_push(1, 7, ahead=1, epoch=2), Refused)
    assert refused.rule == "base"
    (refused,) = sent(server.sealed_push(1, 8, ahead=2, epoch=2), Refused)
    assert refused.rule == "stale", "nothing was handed out in this epoch"


def test_a_push_that_was_held_is_dropped_with_the_epoch() -> None:
    server = alone()
    server.pull(1)
    server.sealed_push(0, 5)
    server.sealed_push(1, 6, ahead=1)
    server.tell(server.assign(placement(2, ("s0",)), at=0))
    server.sealed_push(0, 7, epoch=2)
    server.commit(1, 7)
    assert [key.step for key, _, _ in server.stores[0].added] == [-1, 0, 0]


def test_a_commit_that_contradicts_what_was_handed_out_fails_the_job_by_name() -> None:
    server = alone()
    server.pull(1)
    server.sealed_push(0, 5)
    other = Commit(0, 1, 0, (fence(5),), ({"lr": 7.0},), 1.0, False, 0, 0)
    (failed,) = sent(server.tell(Committed(1, 1, other)), Failed)
    assert "step 0 disagree on the hyper-parameters" in failed.trace
    assert server.core.versions.applied == 0


# ---------------------------------------------------------------- what a worker believes


class AheadWorker(WorkerKit):
    """A worker that has read version 1 from both servers before its commit, and computes step 1 on it."""

    def __init__(self) -> None:
        super().__init__()
        self.computing(step=0)
        self.seal()
        self.answer(self.grant(1, 6), ahead=True)

    def answer(self, out: list[Send | Fill | Connect], *, ahead: bool) -> None:
        for send in out:
            if isinstance(send, Send) and isinstance(send.message, Pull):
                assert send.message.ahead
                self.hear(PullReply(send.message.req, 0, 1, 1, (), 0, 1, ahead), sender=send.to)


def test_a_push_names_the_epoch_in_which_its_base_was_read_ahead() -> None:
    assert {(push.base, push.ahead) for push in AheadWorker().push()} == {(1, 1)}


def test_a_new_placement_voids_what_was_read_ahead_of_its_commit() -> None:
    kit = AheadWorker()
    kit.core.place(kit.prepared(2, "s0", "s1"))
    assert set(kit.core.model.held.values()) == {-1}


@pytest.mark.parametrize("news", ["a later lease", "a later read"])
def test_what_is_known_to_be_committed_stays_valid_in_a_new_placement(news: str) -> None:
    kit = AheadWorker()
    if news == "a later read":
        kit.core.model.fill("s1", 1)
    else:
        kit.seal()
        kit.hear(Grant(turn_of(kit.core).req, 1, 0, 1, 2, 0, 2, fence(9), segment(), False))
    assert kit.core.model.ahead == 0
    kit.core.place(kit.prepared(2, "s0", "s1"))
    assert set(kit.core.model.held.values()) == {1}


@pytest.mark.parametrize(
    ("epoch", "firsts", "held"),
    [(2, {2: 1}, 1), (2, {2: 0}, -1), (3, {2: 1, 3: 1}, 1), (3, {2: 0, 3: 1}, -1), (3, {3: 1}, -1)],
    ids=["committed", "not committed", "committed, epoch 2 missed", "made anew in epoch 2", "not known"],
)
def test_the_epochs_tell_whether_the_version_was_committed_in_the_one_in_which_it_was_read(
    epoch: int, firsts: dict[int, int], held: int
) -> None:
    kit = AheadWorker()
    kit.core.place(msgspec.structs.replace(kit.prepared(epoch, "s0", "s1"), firsts=tuple(firsts.items())))
    assert set(kit.core.model.held.values()) == {held}
    assert kit.core.model.proven == ((1, 1) if held == 1 else (0, -1))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_worker_is_told_the_last_version_before_the_epoch(restarted: bool) -> None:
    job = CoordinatorKit(workers=1, servers=2, slots=1, replicas=1).start().initialise()
    job.finish_step(0)
    job.wrote(job.core.lost("server-1", "killed", job.now))
    if restarted:
        job.restart()
        job.say("server-0", job.registration("server", "server-0", epoch=2, applied=1))
        job.say("worker-0", job.registration("worker", "worker-0"))
    (prepared,) = sent(job.say("worker-0", PlacementRequest(job.req(), 1)), Prepared)
    assert prepared.placement.epoch > 1
    assert dict(prepared.firsts) == {1: -1, 2: 1}
