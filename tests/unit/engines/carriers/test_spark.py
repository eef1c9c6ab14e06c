"""The carrier of agents on Spark, with an application that only notes what it is asked for."""

from __future__ import annotations

import functools
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.kit.roles import run_in

from paceline.core.hosts.executor_tasks import host_name
from paceline.engines.carriers import spark
from paceline.engines.carriers.base import Wanted
from paceline.engines.carriers.spark import SparkAgents
from paceline.engines.role_runner import HostLeaves, Note
from paceline.errors import ClusterLostError, UsageError

TOKEN = bytes(range(32))
WANTED = Wanted(roles=2, hosts=2)


class Application:
    """A `SparkApplication` with two executors of one core. Its tasks end as the test says by `results`."""

    master, is_own, is_elastic, most_executors = "local-cluster[2,1,900]", True, False, 2

    def __init__(self) -> None:
        self.context = self
        self.results: queue.SimpleQueue[tuple[int, str] | Exception] = queue.SimpleQueue()
        self.groups: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.tasks: list[functools.partial[object]] = []
        self.count = 2
        self.end = ""
        self.closed = False

    def address(self) -> str:
        return "127.0.0.1"

    def conf(self, name: str, default: str = "") -> str:
        return default

    def executors(self) -> tuple[int, int, int]:
        return self.count, 1, 0

    def ending(self) -> str:
        return self.end

    def close(self) -> None:
        self.closed = True
        for _ in range(20):
            self.results.put(ConnectionError("closed"))

    # ------------------------------------------------------------ as a SparkContext

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:
        assert interruptOnCancel
        self.groups.append((group, text))

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)

    def parallelize(self, rows: list[int], partitions: int) -> Any:
        assert partitions == len(rows) == 1
        return SimpleNamespace(mapPartitions=self._map)

    def _map(self, task: functools.partial[object]) -> Any:
        self.tasks.append(task)
        return SimpleNamespace(collect=self._collect)

    def _collect(self) -> list[tuple[int, str]]:
        found = self.results.get()
        if isinstance(found, Exception):
            raise found
        return [found]


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Application:
    found = Application()
    monkeypatch.setattr(spark, "open_application", lambda *_: found)
    monkeypatch.setattr(spark, "_LOOK_S", 0.01)
    monkeypatch.setattr(spark, "_reserve", lambda *_: (1, None))
    module = ModuleType("pyspark")
    module.InheritableThread = threading.Thread  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", module)
    return found


@pytest.fixture
def agents(application: Application, tmp_path: Path) -> Iterator[SparkAgents]:
    found = SparkAgents(application.master, run_in(tmp_path))
    yield found
    found.close()
    assert application.closed


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begun(agents: SparkAgents, application: Application) -> dict[str, int]:
    """Let the agents of tasks 0 and 1 join; returns the roles on their hosts."""
    agents.begin("127.0.0.1:7411", TOKEN)
    until(lambda: agents.tick({}, WANTED) == [] and len(application.tasks) == 2)
    joined = {host_name(0, 0): 1, host_name(1, 1): 1}
    assert agents.tick(joined, WANTED) == []
    return joined


def test_each_agent_is_a_job_of_its_own_that_names_no_token(agents: SparkAgents, application: Application) -> None:
    assert agents.own_address() == "127.0.0.1"
    begun(agents, application)
    assert agents.coming({host_name(0, 0): 1, host_name(1, 1): 1}) == 0
    assert sorted(text for _, text in application.groups) == ["Paceline agent 0", "Paceline agent 1"]
    assert len({group for group, _ in application.groups}) == 2
    assert not any(TOKEN.hex() in word for group in application.groups for word in group)
    assert sorted(task.args for task in application.tasks) == [
        ("127.0.0.1:7411", TOKEN, 0),
        ("127.0.0.1:7411", TOKEN, 1),
    ]


def test_a_host_that_is_not_needed_is_emptied_and_then_its_task_is_cancelled(
    agents: SparkAgents, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = begun(agents, application)
    fewer = Wanted(roles=1, hosts=1)
    now = time.monotonic()
    agents.tick(joined, fewer)
    monkeypatch.setattr("paceline.engines.carriers.spark.time.monotonic", lambda: now + 60.0)
    (leaves,) = agents.tick(joined, fewer)
    monkeypatch.undo()
    assert leaves == HostLeaves(host_name(1, 1))
    del joined[host_name(1, 1)]
    agents.tick(joined, fewer)
    until(lambda: [group.rpartition("-")[2] for group in application.cancelled] == ["1"])


def test_the_last_line_of_an_agent_that_failed_is_shown(agents: SparkAgents, application: Application) -> None:
    joined = begun(agents, application)
    application.results.put((2, "Traceback\npaceline: host executor-0-0: it has torch none\n"))
    until(lambda: not agents._ended.empty())
    (note,) = agents.tick(joined, WANTED)
    assert isinstance(note, Note)
    assert "host executor-0-0: it has torch none. Another is started in 1 s" in note.text


def test_executors_without_paceline_are_told_from_other_failures(agents: SparkAgents, application: Application) -> None:
    joined = begun(agents, application)
    application.results.put(RuntimeError("ModuleNotFoundError: No module named 'paceline'"))
    until(lambda: not agents._ended.empty())
    (note,) = agents.tick(joined, WANTED)
    assert isinstance(note, Note)
    assert "PYSPARK_PYTHON names, needs the same Paceline and torch" in note.text


def test_a_run_that_cannot_begin_is_a_usage_error(agents: SparkAgents, application: Application) -> None:
    agents.begin("127.0.0.1:7411", TOKEN)
    until(lambda: bool(agents.coming({})) and agents._offer is not None)
    with pytest.raises(UsageError, match="can have 2 executors"):
        agents.tick({}, Wanted(roles=3, hosts=3))


def test_an_application_that_was_ended_ends_the_run(agents: SparkAgents, application: Application) -> None:
    joined = begun(agents, application)
    application.end = "it was stopped"
    until(lambda: agents._problem != "")
    with pytest.raises(ClusterLostError, match="the Spark application has ended: it was stopped; see"):
        agents.tick(joined, WANTED)


def test_ctrl_c_stays_what_it_was(application: Application, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    application.is_own = False  # the session of a notebook, whose handler cancels all jobs
    signal.signal(signal.SIGINT, lambda *_: None)
    handler = signal.getsignal(signal.SIGINT)
    try:
        agents = SparkAgents("", run_in(tmp_path))
        agents.begin("127.0.0.1:7411", TOKEN)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        agents.close()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
