"""A run on hosts is watched: names that live twice, and pauses."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.kit.virtual_time import virtual_time

from paceline.messages.status import ProcessStatus, Status
from paceline.testing.host_cluster import HostCluster
from paceline.testing.hosts.watch import RunWatch, living_roles, twice


class Cluster:
    """Commits every 20 ms, except between `stops` and `goes`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.stops = self.goes = 0.0
        self.members: list[str] = []

    def status(self) -> Status | None:
        passed = time.monotonic() - self.began
        passed = min(passed, self.stops) if passed < self.goes else passed
        processes = tuple(ProcessStatus(name, "worker", 1, f"{name}/1") for name in self.members)
        return msgspec.structs.replace(Status(), version=int(passed / 0.02), processes=processes)


def role(folder: Path, name: str, start: int) -> subprocess.Popen[bytes]:
    """A process with the command line of a role."""
    words = ["-m", "paceline.runtime.role_process", "1", name, str(folder / "roles" / f"{name}.{start}.json")]
    return subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE)


def until_seen(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 10.0
    while len(living_roles(folder)) != number:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_name_that_lives_twice_is_found_unless_a_host_is_cut_off(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    roles = [role(tmp_path, "worker-0", 1), role(tmp_path, "worker-1", 1), role(tmp_path / "x", "worker-0", 2)]
    try:
        until_seen(tmp_path, 3)
        assert sorted(living_roles(tmp_path)) == [("worker-0", 1), ("worker-0", 2), ("worker-1", 1)]
        assert living_roles(tmp_path / "x") == [("worker-0", 2)], "other runs do not count"
        for split, problems in ((True, []), (False, ["worker-0 lives twice"])):
            watch = RunWatch(cast(HostCluster, cluster))
            watch.split = split
            with watch:
                time.sleep(0.5)
            assert watch.problems == problems
    finally:
        for process in roles:
            process.kill()
            process.communicate()
    assert living_roles(tmp_path) == []


def test_a_name_that_is_a_member_twice_is_always_a_problem(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.members = ["worker-0", "server-0", "worker-0"]
    watch = RunWatch(cast(HostCluster, cluster))
    watch.split = True
    watch.status()
    watch.status()
    assert watch.problems == ["worker-0 is a member twice"]
    assert twice(["a", "b", "a", "b", "c"]) == ["a", "b"]


def test_the_longest_time_without_a_commit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    virtual_time(monkeypatch, sys.modules[__name__], named=["paceline.testing.hosts.watch"])
    cluster = Cluster(tmp_path)
    cluster.stops, cluster.goes = 0.1, 0.5
    watch = RunWatch(cast(HostCluster, cluster))
    assert watch.longest_pause(0.8) == pytest.approx(0.4, abs=0.03)
    assert watch.longest_pause(0.2) < 0.04
