"""What `paceline status` prints about copies and failovers and about runs that have ended, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit.statuses import status
from tests.kit.story import eventful
from tests.kit.told_runs import Done, paceline, told

from paceline.cli.status import _copies, _processes, _recovered, copies_in_words
from paceline.messages.status import PlacementStatus
from paceline.runtime.rundir import RunDir, begin_run, finish_run

STATUS: dict[str, Any] = {
    "servers": ["server-0", "server-1", "server-2"],
    "wanted_servers": 3,
    "replicas": 1,
    "draining": [],
    "processes": [
        {"name": "server-0", "role": "server", "pid": 71, "node": "server-0/1"},
        {"name": "server-1", "role": "server", "pid": 72, "node": "server-1/1"},
    ],
    "placement": {
        "epoch": 3,
        "blocks": 4,
        "servers": {"server-0": [2, 1], "server-1": [2, 3]},
        "short": 0,
        "building": 0,
    },
}


def test_status_shows_the_blocks_of_each_server() -> None:
    assert list(_copies(status(STATUS))) == [
        "server-0 (pid 71): primary of 2 blocks, backup of 1",
        "server-1 (pid 72): primary of 2 blocks, backup of 3",
        "server-2 (not connected): primary of 0 blocks, backup of 0",
        "1 copy of each of 4 blocks, all in sync",
    ]


def test_status_shows_the_processes_of_the_coordinator_and_of_the_workers() -> None:
    names = ("worker-1", "worker-0")
    workers = [{"name": name, "role": "worker", "pid": 80 + i, "node": name} for i, name in enumerate(names)]
    processes = [*STATUS["processes"], *workers]
    lines = list(_processes(status(STATUS, processes=processes, pid=70)))
    assert lines == ["coordinator (pid 70)", "worker-0 (pid 81)", "worker-1 (pid 80)"]


def test_status_shows_draining_servers_and_missing_copies() -> None:
    placement = {**STATUS["placement"], "short": 1, "building": 1}
    lines = list(_copies(status(STATUS, placement=placement, draining=["server-1"], wanted_servers=2)))
    assert lines[1] == "server-1 (pid 72): primary of 2 blocks, backup of 3, being emptied"
    assert lines[3:] == ["2 servers are wanted", "1 copy of each of 4 blocks; 1 block with fewer; 1 being made"]


def test_status_shows_the_last_change_with_its_reason() -> None:
    changes = [{"number": 1, "kind": "failover", "why": "server-1 is lost (killed)", "age_s": 12.4}]
    assert list(_copies(status(STATUS, changes=changes)))[-1] == "12 s ago: server-1 is lost (killed)"


def test_the_line_of_copies_uses_singular_and_plural() -> None:
    assert copies_in_words(PlacementStatus(blocks=1), 1) == "1 copy of each of 1 block, all in sync"
    line = copies_in_words(PlacementStatus(blocks=5, short=2), 2)
    assert line == "2 copies of each of 5 blocks; 2 blocks with fewer"


def test_status_without_replicas_shows_no_line_of_copies() -> None:
    placement = {**STATUS["placement"], "servers": {"server-0": [4, 0]}}
    changed = status(STATUS, replicas=0, servers=["server-0"], wanted_servers=1, placement=placement)
    lines = list(_copies(changed))
    assert lines == ["server-0 (pid 71): primary of 4 blocks"]


def test_status_shows_the_number_of_failovers_and_the_longest_pause() -> None:
    (line,) = _recovered(status(failovers=2, failover_s=0.84), 1)
    assert line == "a backup took over 2 times; the longest pause of commits was 0.8 s"
    (line,) = _recovered(status(failovers=1, failover_s=0.84), 1)
    assert line.startswith("a backup took over 1 time;")


# ---------------------------------------------------------------- runs without processes


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run whose log ends at step 26, with a checkpoint of that step."""
    return told(eventful(), tmp_path / "run")


INTERRUPTED = {"state": "ended", "code": 130, "reason": "interrupted", "step": 24, "end_step": 30, "checkpoint": None}


def test_status_of_a_run_that_is_done(run: RunDir) -> None:
    finish_run(run, '{"state": "done", "steps": 26}')
    assert paceline("status", run.path) == Done(0, [f"{run.path}: done after 26 steps"])
    assert json.loads(paceline("status", run.path, "--json").text)["steps"] == 26


@pytest.mark.parametrize(("code", "exit_code"), [(130, 3), (143, 3), (3, 1), (1, 1)])
def test_status_of_a_run_that_ended_too_early(code: int, exit_code: int, run: RunDir) -> None:
    run.write_end({**INTERRUPTED, "code": code, "reason": "it ended", "advice": "do this"})
    said = [f"{run.path}: it ended at step 24 of 30, 0 s ago; no checkpoint.", "do this"]
    assert paceline("status", run.path) == Done(exit_code, said)
    assert paceline("status", run.path, "--json").code == exit_code


def test_status_of_a_resumed_run_does_not_count_the_summary_of_before(run: RunDir) -> None:
    finish_run(run, '{"state": "done", "steps": 20}')
    begin_run(run)
    killed = paceline("status", run.path)
    assert killed.code == 3
    assert killed.text.startswith(
        f"{run.path}: the launcher of a resumed run was killed at step 26; checkpoint i0003-v0000000026, step 26.\n"
        "summary.json is from when the run was done before.\n"
    )
    assert json.loads(paceline("status", run.path, "--json").text)["step"] == 26
    run.write_end(INTERRUPTED)
    assert "interrupted at step 24 of 30" in paceline("status", run.path).text
    with run.launching():
        assert paceline("status", run.path).text == f"{run.path}: running: no coordinator has announced itself"
    begin_run(run)
    finish_run(run, '{"state": "done", "steps": 30}')
    assert paceline("status", run.path).text == f"{run.path}: done after 30 steps"


def test_status_of_a_run_whose_launcher_was_killed_is_read_from_the_log(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDir, "answer_s", 0.05)
    run.announce("tcp://127.0.0.1:9", 1)
    killed = paceline("status", run.path)
    assert killed.code == 3
    assert "the launcher was killed at step 26; checkpoint i0003-v0000000026, step 26.\n`paceline run" in killed.text
    run.log_file.write_text("damaged")
    assert "the launcher was killed; checkpoint i0003-v0000000026" in paceline("status", run.path).text


def test_status_of_a_directory_in_which_nothing_ran(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert paceline("status", run.path) == Done(3, [f"{run.path}: not started: no coordinator has run there"])
    with run.launching():
        assert paceline("status", run.path).code == 0
        assert json.loads(paceline("status", run.path, "--json").text)["state"] == "running"
