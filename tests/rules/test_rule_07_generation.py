"""Rule 7, generation: the coordinator raises a durable generation before it speaks; lower ones are refused everywhere.

After a restart, known members and reported leases get a full new term. Silence counts only time during which the
coordinator itself ran.

Upheld by:
- `core.server.assignment.Assignment.admits` and `core.worker.registration.Registration.accepts`
- `coordinator.generation`: a coordinator that opens the log raises its generation; a lower one writes nothing
- `core.running_time.RunningTime.advance`: pauses of the coordinator do not count
- `core.coordinator.restart`: a restarted coordinator waits for the registrations of all servers
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.core import BLOCKS, HYPER, ServerKit, fence, plan, segment, sent, state_of, written
from tests.kit.restarted_job import held, server_back, trained, worker_back
from tests.kit.worker_core import grant, worker_core

from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import LogStore
from paceline.core.coordinator.tables.members import Member, Members
from paceline.core.effects import (
    Effect,
)
from paceline.core.running_time import RunningTime
from paceline.core.worker.turn import WorkerState
from paceline.errors import DeposedError
from paceline.messages import (
    Abort,
    Committed,
    Grant,
    Prepared,
    Refused,
    Revoke,
    Unpin,
)
from paceline.types import Commit, Placement


def test_a_server_refuses_lower_generations() -> None:
    server = ServerKit()
    server.tell(plan(segment(), generation=3))
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    server.tell(Abort(2, "failed", "an old coordinator"))
    server.tell(Unpin(1, 0, 0))
    assert server.core.versions.applied == 0
    assert server.core.failed is None
    assert server.store.released == []
    assert server.core.refusals.counts == {"generation": 3}
    row = Commit(0, 1, 0, (fence(5), fence(6)), HYPER, 1.0, False, 0, 0)
    server.tell(Committed(3, 1, row))
    assert server.core.versions.applied == 1


def test_a_worker_refuses_lower_generations() -> None:
    core = worker_core()
    core.ask(0.0, 0)
    core.handle("coordinator", grant(core, generation=4), (), 0.0)
    core.handle("coordinator", Abort(3, "failed", "an old coordinator"), (), 0.0)
    core.handle("coordinator", Revoke(3, fence(5)), (), 0.0)
    assert core.turn.abort is None
    assert state_of(core) == WorkerState.PULLING
    placement = Placement(9, ("elsewhere",) * len(BLOCKS), {"elsewhere": "there"})
    core.handle("coordinator", Prepared(0, 3, 0, placement), (), 0.0)
    assert set(core.model.by_server) == {"server-0"}
    core.handle("coordinator", Revoke(4, fence(5)), (), 0.0)
    assert state_of(core) == WorkerState.ASKING


def test_a_push_of_a_generation_unknown_to_the_server_is_refused_for_now() -> None:
    server = ServerKit()
    assert sent(server.push(0, 0, 5, fence=fence(5, generation=2)), Refused)[0].rule == "plan"


def test_a_pause_of_the_coordinator_evicts_no_member() -> None:
    clock, members = RunningTime(max_gap_s=1.0), Members(10.0)
    now = clock.advance(0.0)
    members.add(Member("a", "worker", "a", 1, "here", None, now, now))
    assert members.expire(clock.advance(600.0)) == []


def test_leases_reported_after_a_restart_get_a_full_new_term() -> None:
    job = trained(1)
    first, second = job.lease("worker-0"), job.lease("worker-1")
    assert (first.step, second.step) == (1, 1)
    job.restart()
    for server in job.servers:
        server_back(job, server)
    worker_back(job, "worker-0", held(first))
    worker_back(job, "worker-1", held(second, sealed=True))
    assert {lease.slot.slot for lease in job.core.tables.leases.live.held_by("worker-0")} == {0}
    grants = sent(job.turn("worker-1"), Grant)
    assert [g.step for g in grants] == [2], "both slots of step 1 are held"
    job.seal("worker-0", first)
    for server in job.servers[:1]:
        assert written(job.ready(server, 1, first.fence, second.fence), Commit) == []
    (commit,) = written(job.ready("server-1", 1, first.fence, second.fence), Commit)
    assert commit.fences == (first.fence, second.fence)


def test_a_restarted_coordinator_leases_and_commits_only_after_every_server_registered() -> None:
    """Until then the coordinator does not know which versions the servers hold."""
    job = trained(1)
    first, second = job.lease("worker-0"), job.lease("worker-1")
    job.restart()
    job.now += 5.0
    server_back(job, "server-0")
    worker_back(job, "worker-0", held(first, sealed=True))
    worker_back(job, "worker-1", held(second, sealed=True))
    assert sent(job.turn("worker-0"), Grant) == []
    effects: list[Effect] = []
    for server in job.servers:
        effects += job.ready(server, 1, first.fence, second.fence)
    assert written(effects, Commit) == []
    effects = server_back(job, "server-1")
    assert len(written(effects, Commit)) == 1, "the reports that arrived meanwhile complete the step"
    assert len(sent(effects, Grant)) == 1


def test_a_restarted_coordinator_releases_versions_only_after_every_server_registered() -> None:
    from paceline.messages import Beat

    job = trained(2)
    job.restart()
    server_back(job, "server-0", kept=(1,))
    assert sent(job.say("server-0", Beat("server-0", 0, 1, 2, 1, (1,))), Unpin) == []
    server_back(job, "server-1", kept=(1,))
    assert [u.version for u in sent(job.say("server-0", Beat("server-0", 0, 1, 2, 1, (1,))), Unpin)] == [1]


def test_silence_counts_from_the_restart_of_the_coordinator() -> None:
    job = trained(1)
    job.restart()
    timeout = job.spec.heartbeat_timeout_s
    assert job.core.tick(timeout - 0.1) == []
    assert not job.core.machines.rewind.is_rewinding
    job.core.tick(timeout + 0.2)
    assert job.core.machines.rewind.is_rewinding, "a server that never registered is lost"


def test_a_lower_generation_writes_nothing_to_the_log(tmp_path: Path) -> None:
    old = LogStore(tmp_path / "log.sqlite")
    new = LogStore(tmp_path / "log.sqlite")
    assert new.generation == old.generation + 1
    with pytest.raises(DeposedError):
        old.put("summary", "old")
    with pytest.raises(DeposedError):
        old.write([])
    old.close()
    new.close()
    with LogReader(tmp_path / "log.sqlite") as reader:
        assert reader.get("summary") is None
