"""The Spark application of a run: its settings, the session that is there, and addresses that cannot be used."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.engines.carriers.spark_session import (
    SparkApplication,
    check_answers,
    first_cause,
    is_here,
    open_application,
    settings,
)
from paceline.errors import UsageError


class Context:
    """As much of a SparkContext as a carrier needs before its first task."""

    applicationId = "app-1"

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self.stopped = False
        self._settings = {key.replace("_", "."): value for key, value in conf.items()}

    def getConf(self) -> Any:
        return SimpleNamespace(getAll=lambda: list(self._settings.items()))

    def stop(self) -> None:
        self.stopped = True


def with_session(monkeypatch: pytest.MonkeyPatch, context: Context | None) -> None:
    module = ModuleType("pyspark")
    module.SparkContext = SimpleNamespace(_active_spark_context=context)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", module)


def test_a_missing_extra_is_an_error_with_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[spark\]'"):
        open_application("", "paceline run", tmp_path / "spark.log")


def test_the_session_that_is_there_is_used_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = Context("spark://a:7077", spark_driver_host="127.0.0.1")
    with_session(monkeypatch, context)
    for master in ("", "spark://a:7077"):
        application = open_application(master, "paceline run", tmp_path / "spark.log")
        assert application.context is context
        assert application.address() == "127.0.0.1"
        application.close()
    assert not context.stopped


def test_a_session_with_another_master_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_session(monkeypatch, Context("local[2]"))
    with pytest.raises(UsageError, match=r"--master spark://a:1: this process has a Spark session with .* local\[2\]"):
        open_application("spark://a:1", "paceline run", tmp_path / "spark.log")


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_session(monkeypatch, None)
    with pytest.raises(UsageError, match="Spark Connect cannot carry agents"):
        open_application("sc://a:15002", "paceline run", tmp_path / "spark.log")


def test_dynamic_allocation_needs_executors_of_a_known_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_session(monkeypatch, Context("spark://a:7077", spark_dynamicAllocation_enabled="true"))
    with pytest.raises(UsageError, match=r"set spark\.executor\.cores"):
        open_application("", "paceline run", tmp_path / "spark.log")


def test_an_address_where_nobody_answers_is_an_error_within_seconds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        began = time.monotonic()
        with pytest.raises(UsageError, match=r"nobody answers there .* tried for 5 s: start the master"):
            check_answers(f"spark://127.0.0.1:{taken.getsockname()[1]}")
    assert time.monotonic() - began < 6.0


def test_one_of_several_masters_is_enough() -> None:
    with socket.socket() as taken, socket.create_server(("127.0.0.1", 0)) as master:
        taken.bind(("127.0.0.1", 0))
        check_answers(f"spark://127.0.0.1:{taken.getsockname()[1]},127.0.0.1:{master.getsockname()[1]}")


@pytest.mark.parametrize("master", ["spark://a", "spark://:7077", "spark://a:x"])
def test_the_address_of_a_standalone_master_has_a_form(master: str) -> None:
    with pytest.raises(UsageError, match=r"a standalone master is spark://HOST:PORT"):
        check_answers(master)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:1,10.0.0.2:1", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1", False),
    ],
)
def test_a_cluster_on_this_machine_stays_on_the_loopback_address(master: str, here: bool) -> None:
    assert is_here(master) == here
    assert ("spark.driver.host" in settings(master, "x")) == here


def test_a_task_of_a_local_cluster_has_all_cores_of_its_executor() -> None:
    found = settings("local-cluster[3, 4, 900]", "x")
    assert (found["spark.task.cpus"], found["spark.executor.cores"]) == ("4", "4")
    assert found["spark.executor.memory"] == "900m"


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("local[*]", os.cpu_count())]
)
def test_a_task_of_spark_on_this_machine_has_all_its_cores(master: str, cores: int) -> None:
    assert settings(master, "x")["spark.task.cpus"] == str(cores)


@pytest.mark.parametrize(
    ("master", "conf", "most"),
    [
        ("local[4]", {}, 1),
        ("local-cluster[3,1,900]", {}, 3),
        ("spark://a:1", {}, None),
        ("yarn", {"spark_dynamicAllocation_enabled": "true", "spark_dynamicAllocation_maxExecutors": "5"}, 5),
        (
            "yarn",
            {"spark_dynamicAllocation_enabled": "true", "spark_dynamicAllocation_maxExecutors": "2147483647"},
            None,
        ),
    ],
)
def test_how_many_executors_there_can_be(master: str, conf: dict[str, str], most: int | None) -> None:
    assert SparkApplication(Context(master, **conf), None, is_own=False).most_executors == most


JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times.
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2856)
Caused by: java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory
"""
PYTHON = """: org.apache.spark.SparkException: Job aborted due to stage failure: Traceback (most recent call last):
  File "worker.py", line 1, in main
    import paceline
ModuleNotFoundError: No module named 'paceline'

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


def test_the_cause_of_an_error_of_spark_is_one_line() -> None:
    assert (
        first_cause(JAVA) == 'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory'
    )
    assert first_cause(PYTHON) == "ModuleNotFoundError: No module named 'paceline'"
    assert first_cause("") == "no reason was given"
