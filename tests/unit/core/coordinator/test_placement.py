"""The coordinator's side of copies: failover, sets that shrink and grow, servers that come and go."""

from __future__ import annotations

import pytest
from tests.kit.core import HYPER, CoordinatorKit, fence, segment, sent, turn_of, written
from tests.kit.placed_job import compute, epoch, kill, placed, ready, replaced, replicated_job, returns, settle, tick

from paceline.core.coordinator.pin_book import VALIDATION
from paceline.core.effects import Complete, Effect, IncarnationFact, PlacementFact, Send, Write
from paceline.core.worker.dispatch import WorkerCore
from paceline.core.worker.reachability import ServerReachability
from paceline.messages import (
    Beat,
    Chained,
    Committed,
    Copied,
    CopyOver,
    Grant,
    JobArgs,
    PhaseOver,
    Prepared,
    Probe,
    Pull,
    PullReply,
    Reachable,
    Refused,
    Register,
    Revoke,
    Saved,
    Scale,
    Seal,
    Turn,
    Unreachable,
)
from paceline.types import UNLIMITED, Kind, NodeId, Placement, TensorSpec

# ---------------------------------------------------------------- failover


def test_every_block_has_its_copies_on_other_servers() -> None:
    where = placed(replicated_job(replicas=2))
    assert all(len({*where.copies(b)}) == 3 for b in range(len(where.owners)))


def test_who_waits_to_read_what_is_void_is_told() -> None:
    job = replicated_job()
    grant = job.lease("worker-0")
    assert [r.fence for r in sent(kill(job, "server-0"), Revoke, "worker-0")] == [grant.fence]


def test_the_end_of_a_phase_is_said_anew_when_the_blocks_have_changed_hands_since() -> None:
    """Whoever has not read the last version yet has to read it elsewhere."""
    job = replicated_job()
    for step in range(3):
        ready(job, step, compute(job, step))
    request = Turn(job.req(), 0, 0)
    (over,) = sent(job.say("worker-1", request), PhaseOver, "worker-1")
    assert sent(job.say("worker-1", request), PhaseOver) == [over], "the same answer, as long as it holds"
    kill(job, "server-0")
    (anew,) = sent(job.say("worker-1", request), PhaseOver, "worker-1")
    assert (over.version, over.epoch) == (3, 1)
    assert (anew.version, anew.epoch) == (3, 2)


def test_a_coordinator_that_starts_goes_on_with_the_newest_placement() -> None:
    job = replicated_job()
    kill(job, "server-0")
    where = placed(job)
    job.restart()
    assert placed(job) == where
    assert job.core.tables.placed.failovers == 1
    assert job.core.tables.incarnation.awaited == {"server-1", "server-2"}


def test_a_server_lost_while_a_new_coordinator_listens_is_replaced_by_its_copies() -> None:
    job = replicated_job()
    job.restart()
    where = epoch(job)
    for server in ("server-0", "server-1"):
        job.say(server, Register(job.req(), "server", server, 1, "here", "at", epoch=where, applied=0))
    effects = job.say("server-2/9", Register(job.req(), "server", "server-2", 2, "here", "at"))
    assert written(effects, IncarnationFact) == []
    assert not job.core.tables.incarnation.awaited
    assert "server-2" not in placed(job).holders
    assert "server-2/9" not in placed(job).holders, "a server that comes back starts empty"


def test_a_server_that_is_heard_but_does_not_hear_is_lost_in_the_end() -> None:
    job = replicated_job(heartbeat_timeout_s=10.0)
    grants = compute(job, 0)
    ready(job, 0, grants)
    where = epoch(job)
    for job.now in range(1, 30):
        for server in ("server-0", "server-1", "server-2"):
            applied = 0 if server == "server-1" else 1
            job.say(server, Beat(server, 0, epoch(job) if server != "server-1" else where, applied, 1))
        for worker in job.workers:
            job.say(worker, Beat(worker))
    assert "server-1" not in placed(job).holders
    assert job.core.incarnation == 0


# ---------------------------------------------------------------- whom one cannot reach


def test_a_primary_that_most_workers_cannot_reach_is_lost() -> None:
    job = replicated_job(workers=3)
    peer = placed(job).owners[0]
    for job.now in (0.0, 1.0):
        job.say("worker-0", Unreachable(peer, 3.0, epoch(job)))
    assert peer in job.core.tables.placed.owners
    job.say("worker-1", Unreachable(peer, 3.0, epoch(job)))
    assert peer in job.core.tables.placed.owners, "it may have more to say"
    job.now = 2.0
    job.say("worker-1", Unreachable(peer, 3.0, epoch(job)))
    assert peer not in placed(job).holders
    assert job.core.incarnation == 0


# ---------------------------------------------------------------- a worker


def worker_at(versions: tuple[int, int]) -> WorkerCore:
    """A worker that has block 0 of server-0 and block 1 of server-1 at these versions."""
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "asp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0", "server-1"), {"server-0": "", "server-1": ""})))
    core.ask(0.0, 0)
    asynchronous = segment(slots=1, end_step=20, window=UNLIMITED)
    grant = Grant(turn_of(core).req, 1, 0, 1, 3, 0, 1, fence(0), asynchronous, True)
    pulls = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    for server, pull, version in zip(("server-0", "server-1"), pulls, versions, strict=True):
        core.handle(server, PullReply(pull.req, 0, version, version, ()), (), 0.0)
    return core


def test_a_worker_keeps_what_it_has_read_when_blocks_change_hands() -> None:
    moved = Prepared(0, 1, 0, Placement(2, ("server-1", "server-1"), {"server-1": ""}))
    core = worker_at((4, 4))
    core.place(moved)
    assert core.model.held == {"server-1": 4}
    core = worker_at((4, 5))
    core.place(moved)
    assert core.model.held == {"server-1": -1}, "blocks of several versions are read anew"


def test_a_worker_does_not_wait_for_a_step_that_is_void_nor_for_an_answer_of_a_server_that_is_gone() -> None:
    core = worker_at((4, 4))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20, window=UNLIMITED), True)
    core.handle("coordinator", grant, (), 0.0)
    core.push(0.0, {s: ((), (), Seal(1.0, (), ())) for s in ("server-0", "server-1")})
    core.sealed(0.0, 1.0, HYPER, {}, 0.1)
    assert (core.reports.last_step, len(core.transfers.unacked)) == (4, 2)
    core.place(Prepared(0, 1, 0, Placement(2, ("server-1", "server-1"), {"server-1": ""})))
    assert (core.reports.last_step, len(core.transfers.unacked)) == (-2, 1)
    assert core.reconnected(0.0)[0].message.leases == ()  # type: ignore[attr-defined]


# ---------------------------------------------------------------- copies are made


def test_a_server_that_comes_back_is_sent_copies_and_is_a_member_only_when_it_has_them() -> None:
    job = replicated_job()
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    (server, blocks), *more = placed(job).joining
    assert (server, more) == (node, [])
    assert all(node not in placed(job).copies(b) for b in range(len(placed(job).owners)))
    old = epoch(job)
    source = placed(job).owners[blocks[0]]
    assert job.say(node, Copied(0, old - 1, source)) == []
    effects = job.say(node, Copied(0, old, source))
    assert isinstance(effects[0], Write)
    assert len(sent(effects, CopyOver, node)) == 1
    assert node in placed(job).copies(blocks[0])
    assert epoch(job) == old, "nothing changes for anyone else"
    job.restart()
    assert node in placed(job).copies(blocks[0])


def test_redundancy_and_balance_are_restored() -> None:
    job = replicated_job()
    kill(job, "server-0")
    node = returns(job, "server-0")
    settle(job)
    where = placed(job)
    sets = [where.copies(b) for b in range(len(where.owners))]
    assert all(len(copies) == 2 for copies in sets)
    assert not where.joining
    assert set(where.owners) == {node, "server-1", "server-2"}
    at = epoch(job)
    settle(job, 5)
    assert epoch(job) == at, "then it is left in peace"


def test_a_member_lost_while_a_copy_is_made_ends_it_and_only_members_go_on() -> None:
    job = replicated_job(replicas=2)
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    effects = kill(job, "server-1")
    assert written(effects, IncarnationFact) == [], "server-2 has all"
    assert set(placed(job).owners) == {"server-2"}
    assert node not in placed(job).holders


def test_copies_do_not_wait_for_a_commit_that_does_not_come() -> None:
    job = replicated_job()
    replaced(job)
    tick(job, 2.9)
    assert not placed(job).joining
    tick(job, 0.2)
    assert placed(job).joining


def test_where_steps_take_long_copies_wait_for_them_longer() -> None:
    job = replicated_job()
    for step in range(2):
        grants = compute(job, step)
        job.now += 20.0
        ready(job, step, grants)
    kill(job, "server-0")
    compute(job, 2)
    returns(job, "server-0")
    tick(job, 20.0)
    assert not placed(job).joining
    tick(job, 41.0)
    assert placed(job).joining


def written_whole(job: CoordinatorKit) -> None:
    """Every primary has written its part of the checkpoint under way."""
    version = job.core.machines.checkpoints.saving
    assert version is not None
    for server in job.core.tables.placed.owners:
        chains = tuple((b, b"chain") for b, owner in enumerate(placed(job).owners) if owner == server)
        for effect in job.say(server, Saved(0, epoch(job), version, (), chains)):
            if isinstance(effect, Complete):
                job.wrote(job.core.completed(effect.checkpoint.folder, "", job.now))
    assert job.core.machines.checkpoints.saving is None


def test_copies_are_not_begun_while_a_version_is_saved() -> None:
    job = replicated_job(checkpoint_steps=2, data_len=80)
    ready(job, 0, compute(job, 0))
    kill(job, "server-0")
    grants = compute(job, 1)
    returns(job, "server-0")
    ready(job, 1, grants)
    assert job.core.machines.checkpoints.saving == 2
    ready(job, 2, compute(job, 2))
    assert (job.core.machines.checkpoints.saving, placed(job).joining) == (2, ()), (
        "what the servers have written of it would be dropped"
    )
    written_whole(job)
    ready(job, 3, compute(job, 3))
    assert not placed(job).joining, "the next one is due at once"
    written_whole(job)
    ready(job, 4, compute(job, 4))
    assert placed(job).joining


@pytest.mark.parametrize("hindrance", ["every version is saved", "every version is read for longer than a step"])
def test_where_no_commit_is_a_good_moment_copies_are_begun_all_the_same(hindrance: str) -> None:
    saved = hindrance == "every version is saved"
    job = replicated_job(checkpoint_steps=1 if saved else 0, data_len=80)
    kill(job, "server-0")
    returns(job, "server-0")
    grants = compute(job, 0)
    step = 0
    while not placed(job).joining and job.now < 60.0:
        tick(job, 1.0)
        if not saved and step:
            job.core.tables.pins.discard(step - 1, VALIDATION)
        tick(job, 1.0)
        if placed(job).joining:
            break
        if not saved:
            job.core.tables.pins.add(job.core.version, VALIDATION)
        ready(job, step, grants)
        if saved and job.core.machines.checkpoints.saving is not None:
            written_whole(job)
        step += 1
        if not placed(job).joining:
            grants = compute(job, step)
    assert 10.0 < job.now < 16.0


def test_who_cannot_compute_does_not_wait_for_a_commit() -> None:
    job = replicated_job()
    grants = replaced(job)
    job.core.tables.reach.cut(frozenset(job.workers))
    job.core.tables.reach.report(job.workers[0], placed(job).owners[0], job.now, 100.0)
    tick(job, 0.5)
    assert epoch(job) > grants[0].epoch, "it may be what keeps them from it"


def test_copies_wait_while_an_older_version_must_be_readable() -> None:
    job = replicated_job()
    kill(job, "server-0")
    returns(job, "server-0")
    job.core.tables.pins.add(-1, VALIDATION)
    tick(job)
    assert not placed(job).joining
    job.core.tables.pins.discard(-1, VALIDATION)
    tick(job)
    assert placed(job).joining


def test_servers_are_added_and_drained() -> None:
    job = replicated_job(servers=2, replicas=0)
    job.say("engine", Scale(job.req(), 0, 3))
    node = returns(job, "server-2")
    settle(job)
    assert set(placed(job).owners) == {"server-0", "server-1", node}
    assert job.core.tables.members.wanted_workers == 2
    job.say("engine", Scale(job.req(), 0, 1))
    assert job.core.tables.members.draining == {"server-1", node}
    settle(job)
    assert placed(job).holders == ("server-0",)
    assert job.core.incarnation == 0
    job.restart()
    assert job.core.tables.members.wanted_servers == 1


def test_there_cannot_be_fewer_servers_than_copies() -> None:
    job = replicated_job()
    (refused,) = sent(job.say("engine", Scale(job.req(), 0, 1)), Refused)
    assert refused.rule == "replicas"
    assert job.core.tables.members.wanted_servers == 3


def test_commits_go_to_every_copy() -> None:
    job = replicated_job()
    effects = ready(job, 0, compute(job, 0))
    assert {s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Committed)} == set(
        job.core.tables.placed.holders
    )


def beats(job: CoordinatorKit, seconds: float, *silent: NodeId) -> list[Effect]:
    """Time passes; everyone but the `silent` gives signs of life."""
    effects: list[Effect] = []
    for _ in range(round(2 * seconds)):
        for server in (s for s in job.servers if s not in silent):
            effects += job.say(server, Beat(server, 0, epoch(job), job.core.version, 1))
        effects += tick(job, 0.5)
    return effects


def test_a_silent_server_that_others_can_stand_in_for_is_not_waited_for_long() -> None:
    job = replicated_job(reach_s=3.0)
    first = placed(job).owners[0]
    assert written(beats(job, 3.0, first), PlacementFact) == []
    (fact,) = written(beats(job, 1.0, first), PlacementFact)
    assert fact.failover
    assert first not in fact.placement.holders
    assert "silent for 3.5 s" in fact.why


def test_a_silent_server_that_nobody_can_stand_in_for_is_waited_for() -> None:
    job = replicated_job(reach_s=3.0, servers=2)
    first, second = job.servers
    kill(job, second)
    job.servers.remove(second)
    assert set(placed(job).owners) == {first}
    assert written(beats(job, 50.0, first), PlacementFact) == []
    assert job.core.tables.incarnation.rewinds == 0
    assert written(beats(job, 51.0, first), IncarnationFact), "but not for ever"


def test_two_that_fall_silent_do_not_take_their_blocks_along() -> None:
    job = replicated_job(reach_s=3.0)
    first, second, _ = job.servers
    beats(job, 60.0, first, second)
    assert job.core.tables.incarnation.rewinds == 0
    assert set(placed(job).owners) & {second}, "the second was all that some block had when the first was gone"


def cut_off(job: CoordinatorKit, seconds: int, server: NodeId, *workers: NodeId) -> list[Effect]:
    """These `workers` say all the time that they cannot reach `server`."""
    effects: list[Effect] = []
    for _ in range(seconds):
        for worker in workers:
            effects += job.say(worker, Unreachable(server, 5.0, epoch(job)))
        effects += tick(job)
    return effects


def test_a_job_whose_workers_reach_no_server_ends_with_a_named_error() -> None:
    job = replicated_job(servers=1, replicas=0, heartbeat_timeout_s=10_000.0)
    cut_off(job, 290, "server-0", *job.workers)
    assert job.core.failure is None
    assert [peer for _, peer in job.core.machines.suspicion.cuts] == ["server-0", "server-0"]
    tick(job, 100.0)  # they do, for a while
    cut_off(job, 290, "server-0", *job.workers)
    cut_off(job, 100, "server-0", job.workers[0])  # one of them does
    assert job.core.failure is None
    cut_off(job, 305, "server-0", *job.workers)
    assert job.core.failure is not None
    assert job.core.failure.reason == (
        "no worker has reached server-0 for 300 s: check the network between them and its log"
    )


def test_a_server_that_does_not_hear_is_lost_later_when_nobody_can_stand_in_for_it() -> None:
    for replicas, seconds in ((1, 10.0), (0, 30.0)):
        job = replicated_job(servers=2, replicas=replicas, heartbeat_timeout_s=10.0)
        ready(job, 0, [job.lease(w) for w in job.workers])
        lags = job.servers[0]
        while lags in job.core.tables.members.members:
            assert job.now < 100.0
            for node in job.workers:
                job.say(node, Beat(node))
            job.say(job.servers[1], Beat(job.servers[1], 0, epoch(job), job.core.version, 1))
            job.say(lags, Beat(lags, 0, 0, job.core.version, 1))
            tick(job, 0.5)
        assert seconds < job.now <= seconds + 1.0
        assert (job.core.tables.placed.failovers, job.core.tables.incarnation.rewinds) == (
            (1, 0) if replicas else (0, 1)
        )


def test_of_whom_more_complain_is_lost() -> None:
    job = replicated_job(servers=4, replicas=2)
    first, second, third, _ = job.servers
    for job.now in (0.0, 0.5):
        effects = job.say(third, Unreachable(first, 3.0, epoch(job)))
        effects += job.say("worker-0", Unreachable(first, 3.0, epoch(job)))
        effects += job.say(first, Unreachable(second, 3.0, epoch(job)))
    assert first not in placed(job).holders
    assert second in placed(job).holders
    assert (job.core.tables.placed.failovers, job.core.tables.incarnation.rewinds) == (1, 0)


def test_servers_try_whom_they_could_not_reach_until_they_do() -> None:
    job = replicated_job()
    primary = placed(job).owners[0]
    backup = placed(job).backups[0][0]
    for job.now in (0.0, 0.5):
        job.say(primary, Unreachable(backup, 3.0, epoch(job)))
    for _ in range(20):
        (request,) = sent(tick(job), Probe, primary)
        assert (request.peer, request.address) == (backup, "there")
    assert [pair for pair in job.core.machines.suspicion.cuts if primary in pair] == [(primary, backup)]
    job.say(primary, Reachable(backup))
    assert sent(tick(job), Probe) == []
    assert job.core.machines.suspicion.cuts == []


def test_a_copy_that_is_not_what_its_primary_has_is_made_again() -> None:
    job = replicated_job(checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    assert job.core.machines.checkpoints.saving == 1
    before = placed(job)
    backup = before.backups[0][0]
    same, other = ((0, b"right"),), ((0, b"wrong"),)
    assert job.say(backup, Chained(0, epoch(job), 0, other)) == [], "of another version"
    assert job.say(backup, Chained(0, epoch(job), 1, same)) == []
    chains = tuple((b, b"right") for b, owner in enumerate(before.owners) if owner == before.owners[0])
    assert written(job.say(before.owners[0], Saved(0, epoch(job), 1, (), chains)), PlacementFact) == []
    (fact,) = written(job.say(backup, Chained(0, epoch(job), 1, other)), PlacementFact)
    assert backup not in fact.placement.copies(0)
    assert all(fact.placement.copies(b) == before.copies(b) for b in range(1, len(before.owners)))
    assert (fact.failover, job.core.tables.incarnation.rewinds) == (False, 0)
    assert fact.why == f"copies on {backup} are not equal to their primaries'"
    tick(job)
    assert [server for server, blocks in placed(job).joining if 0 in blocks] == [backup]


def live(job: CoordinatorKit, seconds: int, *cut: NodeId) -> None:
    """Servers and workers live and come back; those `cut` reach no server. Others compute."""
    watches = {worker: ServerReachability(3.0) for worker in cut}
    for _ in range(2 * seconds):
        job.now += 0.5
        if job.core.failure is not None:
            return
        for server in job.servers:
            if server not in job.core.tables.members.members:
                job.say(server, Register(job.req(), "server", server, 1, "here", "there"))
            job.say(server, Beat(server, 0, epoch(job), job.core.version, 1))
        for worker in job.workers:
            job.say(worker, Beat(worker))
        for worker, watch in watches.items():
            for message in watch.tick(job.now, job.core.tables.placed.owners, epoch(job)):
                job.say(worker, message)
        tick(job, 0.0)
        for server, blocks in placed(job).joining:
            for source in sorted({placed(job).owners[b] for b in blocks}):
                job.say(server, Copied(0, epoch(job), source))


@pytest.mark.parametrize(("workers", "cut", "servers"), [(1, 1, 2), (2, 2, 3), (3, 2, 3), (3, 2, 2)])
def test_workers_who_reach_no_server_at_all_are_cut_off_themselves(workers: int, cut: int, servers: int) -> None:
    job = replicated_job(workers=workers, servers=servers, heartbeat_timeout_s=10.0, reach_s=3.0)
    live(job, 290, *job.workers[:cut])
    assert job.core.tables.placed.failovers <= 1
    assert job.core.failure is None
    assert job.core.tables.reach.cut_off == set(job.workers[:cut])
    live(job, 40, *job.workers[:cut])
    assert (job.core.failure is not None) == (cut == workers), "nobody is left who could compute anything"


def test_workers_who_reach_no_server_are_not_believed_about_the_only_primary_twice() -> None:
    small = (TensorSpec("weight", (10,), "float32", Kind.PARAMETER, 0),)
    job = (
        CoordinatorKit(servers=2, tensors=small, replicas=1, rewinds=True, workers=3, reach_s=3.0)
        .start()
        .initialise_with("server-0")
    )
    live(job, 200, "worker-0", "worker-1")
    assert job.core.tables.placed.failovers == 1, "it could have been the server"
    assert job.core.failure is None


def test_servers_that_are_cut_apart_for_good_are_not_sent_copies_to_see_whether_they_are() -> None:
    job = replicated_job(servers=2, heartbeat_timeout_s=1000.0, reach_s=1000.0)
    primary, backup = placed(job).owners[0], placed(job).backups[0][0]
    for job.now in (0.0, 0.5):
        job.say(primary, Unreachable(backup, 3.0, epoch(job)))
    at = epoch(job)
    for _ in range(300):
        tick(job)
    assert epoch(job) == at
