"""What a Spark task does with its agent: one on each executor, with the environment that the run has elsewhere."""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from paceline.core.hosts.executor_tasks import DUPLICATE
from paceline.engines.carriers import spark_task
from paceline.engines.carriers.spark_task import agent_environment, carry


class Carried:
    """A `CarriedAgent` whose agent has ended."""

    end = (3, "the supervisor is lost")
    seen: list[tuple[list[str], str]] = []  # noqa: RUF012

    def __init__(self, words: list[str], token: str, env: dict[str, str]) -> None:
        self.seen.append((words, token))

    def wait(self) -> tuple[int, str]:
        return self.end


@pytest.fixture(autouse=True)
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is a Python process of an executor whose folder is `tmp_path`."""
    module = ModuleType("pyspark")
    context = SimpleNamespace(taskAttemptId=lambda: 17, cpus=lambda: 4)
    module.SparkFiles = SimpleNamespace(getRootDirectory=lambda: str(tmp_path))  # type: ignore[attr-defined]
    module.TaskContext = SimpleNamespace(get=lambda: context)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", module)
    monkeypatch.setattr(spark_task, "CarriedAgent", Carried)
    Carried.seen.clear()


def test_the_agent_has_the_cores_of_the_task_and_a_name_that_no_other_start_has() -> None:
    assert carry("10.0.0.1:7411", b"\x01\x02", 3, iter([3])) == [Carried.end]
    ((words, token),) = Carried.seen
    assert words == ["agent", "10.0.0.1:7411", "--token-file", "-", "--name", "executor-3-17", "--cores", "4"]
    assert token == "0102"


def test_a_second_task_on_an_executor_ends_at_once(tmp_path: Path) -> None:
    with spark_task._only_task(str(tmp_path)) as is_only:
        assert is_only
        assert carry("10.0.0.1:7411", b"\x01", 4, iter([4])) == [(DUPLICATE, "")]
    assert Carried.seen == []
    assert carry("10.0.0.1:7411", b"\x01", 5, iter([5])) == [Carried.end]


def test_a_task_whose_agent_has_left_waits_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("paceline.engines.carriers.spark_task.time.sleep", waited.append)
    monkeypatch.setattr(Carried, "end", (0, "the host is empty"))
    carry("10.0.0.1:7411", b"\x01", 3, iter([3]))
    assert waited == [30.0]


def test_the_agent_sees_no_variables_that_spark_sets() -> None:
    env = {
        "OMP_NUM_THREADS": "1",
        "SPARK_HOME": "x",
        "PYTHON_WORKER_FACTORY_SECRET": "x",
        "PYTHONPATH": "p",
        "HOME": "h",
    }
    assert agent_environment(env) == {"PYTHONPATH": "p", "HOME": "h"}


def test_spark_carries_an_address_a_token_and_a_number_and_no_code() -> None:
    pickled = pickle.dumps(functools.partial(carry, "10.0.0.1:7411", b"\x01\x02", 3))
    assert len(pickled) < 200
    assert b"paceline.engines.carriers.spark_task" in pickled
