"""Promise 6: an acknowledged commit survives.

Any one server at a time may be lost with `--replicas 1` or more. Otherwise the job rewinds to the last complete
checkpoint, says by how many steps, and in lock-step computes the same bits again.

Upheld by: `core.coordinator.placement` (failover), `core.coordinator.rewind`, `core.server.replication`,
`checkpoint` and the commit log (`coordinator.store`).
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kit.checked_runs import check_once, summary_of
from tests.kit.core import sent
from tests.kit.real_runs import PACELINE, SLOW, TRAIN_CASE, live, run
from tests.kit.replicated_runs import PATIENT, REPLICATED, is_whole, kill_servers, train_through_kills
from tests.kit.restarted_job import server_back, trained, worker_back

from paceline.clients.observer import Observer
from paceline.messages import Committed, Grant, Plan, Refused
from paceline.runtime.rundir import RunDir
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.network import problem

# ---------------------------------------------------------------- the coordinator


def test_a_new_coordinator_continues_where_the_log_ends() -> None:
    job = trained(2)
    samples = job.core.totals.samples
    job.restart()
    core = job.core
    assert (core.version, core.watermark.low, core.generation) == (2, 2, 2)
    assert core.totals.samples == samples > 0
    assert core.placement is not None
    assert [p.spec.number for p in core.tables.phases.phases] == [0]
    assert sent(job.turn("worker-0"), Refused)[0].rule == "unknown", "the server must first report what it holds"
    worker_back(job, "worker-0")
    assert sent(job.turn("worker-0"), Grant) == [], "the servers have not been heard yet"
    for server in job.servers:
        effects = server_back(job, server)
        assert len(sent(effects, Plan, server)) == 1
    worker_back(job, "worker-1")
    job.now += 1.0
    job.wrote(core.tick(job.now))
    (grant,) = sent(job.turn("worker-1"), Grant)
    assert (grant.step, grant.fence.generation) == (2, 2)


def test_a_commit_is_announced_again_to_a_server_that_missed_it() -> None:
    job = trained(2)
    job.restart()
    assert sent(server_back(job, "server-0", applied=0), Committed) == [], (
        "the coordinator does not know yet which versions to keep"
    )
    effects = server_back(job, "server-1", applied=2)
    assert [c.commit.version for c in sent(effects, Committed, "server-0")] == [1, 2]
    assert sent(effects, Committed, "server-1") == []


# ---------------------------------------------------------------- servers with backups


@pytest.mark.real_run
@pytest.mark.timeout(200)
def test_killed_servers_cost_no_step_and_no_bit_over_tcp(tmp_path: Path) -> None:
    """The campaign below shows the same for peers that share memory."""
    sleep = json.dumps({"worker-0": 0.1, "worker-1": 0.1})
    case = ["norm-long", "--sleep", sleep]
    struck = train_through_kills(tmp_path, ["--slots", "4"], case, kills=2, PACELINE_LANE="tcp")
    assert summary_of(struck.ended, tmp_path, "norm-long")["steps"] == 80


NOTED = """
import sys, pathlib
from paceline.worker.job import Job
batches = Job.batches
def noted(self, *arguments, **named):
    with pathlib.Path(f"turns-{self._session.port.node.replace('/', '-')}").open("a", buffering=1) as file:
        for batch in batches(self, *arguments, **named):
            grant = self._loop.turn.grant
            file.write(f"{grant.step} {grant.slot}\\n")
            yield batch
Job.batches = noted
script = sys.argv[1]
sys.argv = sys.argv[1:]
exec(compile(pathlib.Path(script).read_text(), script, "exec"))
"""


@pytest.mark.real_run
@pytest.mark.timeout(200)
def test_no_slot_is_computed_again_after_a_failover(tmp_path: Path) -> None:
    """Workers send the gradients that they hold to the new primaries."""
    (tmp_path / "noted.py").write_text(NOTED)
    script = [
        str(SCRIPT),
        "--epochs",
        "3",
        "--samples",
        "512",
        "--slot-ms",
        "300",
    ]  # so long that no slot counts as late
    with live(tmp_path, [*REPLICATED, "--slots", "2"], tmp_path / "noted.py", *script, **PATIENT) as running:
        kill_servers(running, 3)
        ended = running.wait()
    ended.check()
    turns = [line for file in tmp_path.glob("turns-*") for line in file.read_text().splitlines()]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failovers"] >= 3
    assert summary["wasted_slots"] > 0, "no kill was in the middle of a step"
    assert sorted(turns) == sorted(f"{step} {slot}" for step in range(summary["steps"]) for slot in range(2))


@pytest.mark.real_run
@pytest.mark.timeout(200)
def test_with_a_window_killed_servers_cost_no_step(tmp_path: Path) -> None:
    sleep = json.dumps({"worker-0": 0.05, "worker-1": 0.05})
    case = ["counts", "--epochs", "12", "--sleep", sleep]
    struck = train_through_kills(tmp_path, ["--mode", "ssp:3"], case, kills=2)
    assert len(check_once(struck, 12)) == struck.summary["steps"] == 768
    assert struck.summary["max_staleness"] <= 3


@pytest.mark.real_run
@pytest.mark.timeout(200)
def test_a_run_with_backups_continues_without_a_server_that_is_not_restarted(tmp_path: Path) -> None:
    case = ["norm-long", "--sleep", json.dumps({"worker-0": 0.05, "worker-1": 0.05})]
    with live(tmp_path, [*REPLICATED, "--max-restarts", "0"], TRAIN_CASE, *case) as running:
        running.until(is_whole)
        running.strike("server-1", signal.SIGKILL)
        running.until(lambda status: status.wanted_servers == 2 and status.placement.short == 0)
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path, "norm-long")
    why = "server-1 ended (signal 9), and --max-restarts is 0"
    assert f"{why}: the run continues with 2 servers" in ended.out
    assert (summary["rewinds"], summary["servers"]) == (0, 2)


# ---------------------------------------------------------------- campaigns


NO_CUTS = problem()
KILLS = ["--kill", "worker=6", "--kill", "coordinator=4", "--kill", "server=2"]
UNCOPIED = ["-w", "3", "-s", "2", "--mode", "bsp", "--slots", "4", "--checkpoint-every", "10"]
COPIED = ["-w", "3", "-s", "3", "--replicas", "1", "--mode", "bsp", "--slots", "4", "--checkpoint-every", "50"]


def campaign(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run a campaign that must succeed without a rewind; return its figures."""
    file = tmp_path / "figures.json"
    plain = ["--plain-args", "--slot-ms 0", "--plain-shape", "1x1"]
    options = [*COPIED, *words, "--json", str(file), "--dir", "runs", *plain]
    done = run([*PACELINE, "dev", "chaos", *options, SCRIPT], tmp_path, timeout_s=200.0)
    assert done.code == 0, done.out
    figures: dict[str, Any] = json.loads(file.read_text())
    assert figures["ok"]
    assert figures["digest_equal"] is True
    assert (figures["lost_slots"], figures["duplicate_slots"], figures["lost_commits"]) == (0, 0, 0)
    assert figures["rewinds"] == 0, "every block had a backup"
    assert all(one["audit"]["ok"] for one in figures["rounds"])
    return figures


@pytest.mark.real_run
@pytest.mark.timeout(420)
def test_a_dozen_kills_do_not_change_the_weights(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = [*KILLS, "--seed", "1", "--json", str(file), "--dir", "runs", *UNCOPIED]
    plain = ["--plain-args", "--slot-ms 0", "--plain-shape", "1x1"]
    done = run([*PACELINE, "dev", "chaos", *options, *plain, SCRIPT, "--slot-ms", "60"], tmp_path, timeout_s=400.0)
    assert done.code == 0, done.out
    figures = json.loads(file.read_text())
    assert figures["ok"]
    assert figures["fired"] == {"kill coordinator": 4, "kill server": 2, "kill worker": 6}
    assert figures["digest_equal"] is True
    assert (figures["lost_slots"], figures["duplicate_slots"], figures["lost_commits"]) == (0, 0, 0)
    assert figures["rewinds"] == 2
    assert {role: s["n"] for role, s in figures["recovery_s"].items()} == {"coordinator": 4, "server": 2, "worker": 6}
    (only,) = figures["rounds"]
    assert only["restarts"] == {"coordinator": 4, "server": 2, "worker": 6, "sampler": 0}
    assert only["audit"]["ok"]
    assert only["steps"] == only["versions"] > 0


@pytest.fixture(scope="module")
def servers_change(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run one campaign that kills, adds and drains servers; return its directory and its figures."""
    where = tmp_path_factory.mktemp("campaign")
    faults = ["--kill", "server=4", "--add", "server=1", "--drain", "server=1"]
    return where, campaign(where, *faults, "--seed", "2")


@pytest.mark.real_run
@pytest.mark.timeout(220)
def test_a_killed_server_costs_no_commit(servers_change: tuple[Path, dict[str, Any]]) -> None:
    where, figures = servers_change
    assert figures["fired"] == {"kill server": 4, "add server": 1, "drain server": 1}
    assert figures["recovery_s"]["server"]["n"] == 4
    summary = json.loads((where / "runs" / "round-1" / "summary.json").read_text())
    assert summary["failovers"] >= 4
    assert 0.0 < summary["failover_s"] < 10.0
    assert summary["restarts"]["server"] == 4


@pytest.mark.real_run
@pytest.mark.timeout(220)
def test_adding_and_draining_servers_costs_no_commit(servers_change: tuple[Path, dict[str, Any]]) -> None:
    _, figures = servers_change
    assert set(figures["pause_s"]) == {"add server", "drain server"}
    assert figures["restarts"]["server"] == 4, "only the killed servers are restarted, not the drained one"


@pytest.mark.real_run
@pytest.mark.timeout(220)
@pytest.mark.skipif(NO_CUTS is not None, reason=str(NO_CUTS))
def test_after_a_network_cut_every_block_has_its_copies_again(tmp_path: Path) -> None:
    # This seed drops what one server sends to the others for 4.4 s, then cuts another server off from all for 3.1 s.
    figures = campaign(tmp_path, "-w", "2", "--cut", "symmetric=1", "--cut", "one-way=1", "--seed", "149")
    assert figures["fired"] == {"cut one-way": 1, "cut symmetric": 1}
    assert all(figures["restored_s"][f"cut {kind}"]["max"] <= 10.0 for kind in ("symmetric", "one-way"))


# ---------------------------------------------------------------- servers without backups


@pytest.mark.real_run
def test_without_backups_the_loss_of_a_server_rewinds_the_job_to_the_checkpoint(tmp_path: Path) -> None:
    options = ["-w", "2", "-s", "2", "--checkpoint-every", "2"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until(lambda status: status.checkpoint is not None and status.version >= 5)
        running.strike("server-0")
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["steps"] == 12
    assert (summary["rewinds"], summary["incarnation"]) == (1, 1)
    assert summary["restarts"] == {"worker": 0, "server": 1, "coordinator": 0, "sampler": 0}
    assert "server-0 was killed by signal 9: restarted (1)" in ended.out
    assert ": the job goes back to version" in ended.out
    assert "starts its script again" not in ended.out, "the workers stayed in their loop"


@pytest.mark.real_run
def test_without_a_checkpoint_the_loss_of_a_server_restarts_the_job_from_nothing(tmp_path: Path) -> None:
    options = ["-w", "2", "-s", "1", "--checkpoint-every", "0"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        version = running.until_version(3).version
        running.strike("server-0")
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["rewinds"] == 1
    assert summary["recomputed_steps"] >= version
    assert summary["checkpoint"] is None
    assert not (tmp_path / "run" / "checkpoints").exists()
    for worker in ("worker-0", "worker-1"):
        assert f"{worker} starts its script again" in ended.out
    assert summary["restarts"]["worker"] == 0, "no worker died"


@pytest.mark.real_run
def test_a_server_lost_after_the_workers_ended_makes_them_start_again(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "--seed", "7", "--checkpoint-every", "0"], TRAIN_CASE, "norm") as running:
        running.until_version(1)
        observer = Observer(RunDir(running.dir).coordinator, RunDir(running.dir).token())
        deadline = time.monotonic() + 60.0
        while (status := observer.status()).step is None or status.step < 12 or status.workers_alive:
            assert time.monotonic() < deadline
        running.strike("server-0")
        observer.close()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["rewinds"] == 1
    assert "server-0 is lost (signal 9): the job begins again" in ended.out
    assert "a server was lost after the last step: the workers start their scripts again" in ended.out
    assert len(ended.results()) == 4
