"""`paceline run --trace`: the spans of every role in one file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit.chrome_trace import read_trace
from tests.kit.ports import free_port
from tests.kit.real_runs import PACELINE, SMALL, background, live, run

from paceline.testing.chaos.campaigns import SCRIPT


def test_the_trace_of_a_resumed_run_has_the_processes_before_and_after_the_interruption(tmp_path: Path) -> None:
    """Every process of a role is in the row of that role, also those of the resumed run."""
    file = tmp_path / "kept" / "trace.json"
    options = ["-w", "2", "-s", "2", "--checkpoint-every", "5", "--trace", "kept/trace.json"]
    roles = ["coordinator", "server-0", "server-1", "worker-0", "worker-1"]
    with live(tmp_path, options, SMALL, "--epochs", "100000", "--sleep", "0.01") as running:
        running.until_version(6)
        running.roles()["worker-0"].kill()
        version = running.until(lambda status: bool(status.lost_workers)).version
        running.until(lambda status: status.version > version + 5 and len(status.workers) == 2)
        running.process.send_signal(signal.SIGINT)
        ended = running.wait(20.0)
    assert ended.code == 130, ended.out
    assert "interrupted" in ended.lines[-1]
    assert "kept/trace.json (open it in https://ui.perfetto.dev)" in ended.out
    first = read_trace(file)
    assert first.rows == roles
    starts = {role: len(first.of(role, "start")) for role in roles}
    assert starts == dict.fromkeys(roles, 1) | {"worker-0": 2}
    commits = [event["args"]["version"] for event in first.of("coordinator", "commit")]
    assert commits == list(range(len(commits)))
    assert len(commits) > version
    assert len(first.of("coordinator", "sqlite")) >= len(commits)
    assert first.of("coordinator", "handle Turn")

    again = [*PACELINE, "run", "--resume", "run", "--max-steps", "30", "--trace", "kept/trace.json"]
    run(again, tmp_path).check()
    second = read_trace(file)
    assert second.rows == roles
    assert {role: len(second.of(role, "start")) for role in roles} == {role: n + 1 for role, n in starts.items()}
    last = max(event["ts"] for events in first.events.values() for event in events)
    assert second.of("coordinator", "start")[-1]["ts"] > last


def test_a_trace_file_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in ("file/trace.json", "."):
        ended = run([*PACELINE, "run", "--trace", bad, SMALL], tmp_path, timeout_s=20).check(2)
        assert f"--trace {bad} cannot be written" in ended.out
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_has_a_trace_too(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "-w", "1", "--dir", "run", "--trace", "trace.json", SMALL, "--raise-at", "3"]
    ended = run(command, tmp_path).check(1)
    assert "the dog ate my gradient" in ended.out
    assert read_trace(tmp_path / "trace.json").rows == ["coordinator", "server-0", "worker-0"]


def test_the_trace_of_a_run_on_hosts_has_the_roles_of_all_hosts(tmp_path: Path) -> None:
    """Also a process that was killed, and a host that was emptied and left before the end."""
    token = tmp_path / "token"
    run([*PACELINE, "token", token], tmp_path).check()
    address = f"127.0.0.1:{free_port()}"
    agent = [*PACELINE, "agent", address, "--token-file", token, "--cores", "2", "--dir", "cache", "--name"]
    engine = ["--engine", "hosts", "--listen", address, "--token-file", token, "--min-hosts", "2"]
    options = [*map(str, engine), "-w", "2", "-s", "2", "--checkpoint-every", "0", "--trace", "kept/trace.json"]
    with background([*agent, "a"], tmp_path) as first, background([*agent, "b"], tmp_path) as second:
        with live(tmp_path, options, SMALL, "--epochs", "100000", "--sleep", "0.01") as running:
            whole = running.until(lambda status: status.version > 5 and len(status.workers) == 2)
            victim = next(process for process in whole.processes if process.name == "worker-0")
            psutil.Process(victim.pid).kill()
            running.until(lambda status: bool(status.lost_workers) and len(status.workers) == 2)
            run([*PACELINE, "drain", "run", "b"], tmp_path).check()
            version = running.until(lambda status: {p.host for p in status.processes} == {"a"}, 60.0).version
            second.wait(30.0).check()
            running.until_version(version + 5)
            running.process.send_signal(signal.SIGINT)
            ended = running.wait(30.0)
        first.wait(30.0).check()
    assert "kept/trace.json (open it in https://ui.perfetto.dev)" in ended.out
    found = read_trace(tmp_path / "kept" / "trace.json")
    assert set(found.rows) >= {"coordinator", "server-0", "server-1", "worker-0", "worker-1"}, "others replace server-1"
    assert found.labels["coordinator"].endswith(" on supervisor")
    assert f"pid {victim.pid} on {victim.host}" in found.labels["worker-0"]
    assert {host for row in found.rows for host in ("a", "b") if f"on {host}" in found.labels[row]} == {"a", "b"}
    assert found.of("server-0", "sum"), "which holds the one block of the model"
    assert all(found.of(row, "forward+backward") for row in ("worker-0", "worker-1"))
    assert not list((tmp_path / "run" / "trace").glob(".*"))
    assert list((tmp_path / "cache").iterdir()) == []


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


@pytest.mark.parametrize("overlap", ["0", "1"])
def test_the_trace_shows_early_pushes_exactly_if_overlap_is_on(overlap: str, tmp_path: Path) -> None:
    """With overlap each turn of each worker pushes blocks before backward has ended; without it, no turn does."""
    options = ["-w", "2", "-s", "2", "--slots", "4", "--max-steps", "5", "--dir", "run", "--trace", "trace.json"]
    run([*PACELINE, "run", *options, SCRIPT], tmp_path, PACELINE_OVERLAP=overlap).check()
    found = read_trace(tmp_path / "trace.json")
    assert found.rows == ["coordinator", "server-0", "server-1", "worker-0", "worker-1"]
    turns, ahead = [], 0
    for worker in ("worker-0", "worker-1"):
        pushes = found.of(worker, "push")
        early = [push for push in pushes if "ahead" in push["args"]]
        for turn in found.of(worker, "forward+backward"):
            turns.append(turn)
            assert any(inside(push, turn) for push in early) == (overlap == "1")
            assert any(push["ts"] >= turn["ts"] + turn["dur"] for push in pushes), "one push seals the slot"
        ahead += len(early)
    assert sorted((turn["args"]["step"], turn["args"]["slot"]) for turn in turns) == [
        (step, slot) for step in range(5) for slot in range(4)
    ]
    assert bool(ahead) == (overlap == "1")
    for server in ("server-0", "server-1"):
        sums = [event["args"] for event in found.of(server, "sum") if event["args"]["step"] >= 0]
        assert {(args["step"], args["slot"]) for args in sums if "early" not in args} == {
            (turn["args"]["step"], turn["args"]["slot"]) for turn in turns
        }
        assert any("early" in args for args in sums) == (overlap == "1")
        assert len(found.of(server, "apply")) == 5
        assert found.of(server, "reply")
