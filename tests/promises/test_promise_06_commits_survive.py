"""Promise 6, an acknowledged commit survives."""

from __future__ import annotations

from tests.kit.core import sent
from tests.kit.restarted_job import server_back, trained, worker_back

from paceline.messages import (
    Committed,
    Grant,
    Plan,
    Refused,
)


def test_a_new_coordinator_continues_where_the_log_ends() -> None:
    desk = trained(2)
    samples = desk.core.totals.samples
    desk.restart()
    core = desk.core
    assert (core.version, core.watermark.low, core.generation) == (2, 2, 2)
    assert core.totals.samples == samples > 0
    assert core.placement is not None
    assert [p.spec.number for p in core.phases.phases] == [0]
    assert sent(desk.turn("worker-0"), Refused)[0].rule == "unknown", "it must say what it holds first"
    worker_back(desk, "worker-0")
    assert sent(desk.turn("worker-0"), Grant) == [], "the servers have not been heard yet"
    for server in desk.servers:
        effects = server_back(desk, server)
        assert len(sent(effects, Plan, server)) == 1
    worker_back(desk, "worker-1")
    desk.now += 1.0
    desk.wrote(core.tick(desk.now))
    (grant,) = sent(desk.turn("worker-1"), Grant)
    assert (grant.step, grant.fence.generation) == (2, 2)


def test_a_commit_is_announced_again_to_a_server_that_missed_it() -> None:
    desk = trained(2)
    desk.restart()
    assert sent(server_back(desk, "server-0", applied=0), Committed) == [], "not before it is known what to keep"
    effects = server_back(desk, "server-1", applied=2)
    assert [c.commit.version for c in sent(effects, Committed, "server-0")] == [1, 2]
    assert sent(effects, Committed, "server-1") == []
