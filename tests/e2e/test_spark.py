"""Runs on a standalone Spark cluster of this machine with two nodes: one run trains, one fails by its script."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.kit.quick_java import quick_java
from tests.kit.real_runs import PACELINE, SMALL, Ended, run

from paceline.testing.engines.spark_nodes import SparkNodes

pytestmark = pytest.mark.timeout(300)
TRAINS = ["--slots", "4", "--checkpoint-every", "0", SMALL, "--epochs", "4"]


@dataclass(slots=True)
class Story:
    """What was seen: the runs, and what was left of each on the nodes of the cluster, which still ran."""

    folder: Path
    trained: Ended
    failed: Ended
    left: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as env:
        env.setenv("PACELINE_CACHE", str(folder / "cache"))  # for the agents, which executors start
        for name, value in quick_java(folder / "conf").items():
            env.setenv(name, value)
        with contextlib.closing(SparkNodes(cores=2)) as cluster:
            engine = [*cluster.start(2), "-w", "2", "-s", "2", "--replicas", "1"]
            trained = run([*PACELINE, "run", "--dir", "run", *engine, *TRAINS], folder, 150.0)
            left = on_nodes(cluster)
            failed = run([*PACELINE, "run", "--dir", "bad", *engine, *TRAINS, "--raise-at", "2"], folder, 150.0)
            return Story(folder, trained, failed, left + on_nodes(cluster))


def on_nodes(cluster: SparkNodes) -> list[str]:
    """The processes on the nodes of a cluster that are neither Spark's workers nor about to end."""
    there = [process for node in cluster.nodes() for process in cluster.processes(node)[1:]]
    _, alive = psutil.wait_procs(there, timeout=15.0)
    found = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def test_the_result_is_that_of_one_machine(story: Story, tmp_path: Path) -> None:
    assert story.trained.code == 0, story.trained.out
    run([*PACELINE, "run", "--dir", tmp_path / "run", "-w", "1", "-s", "1", *TRAINS], tmp_path).check()
    digests = [json.loads((where / "run" / "summary.json").read_text())["digest"] for where in (story.folder, tmp_path)]
    assert digests[0] == digests[1]


def test_each_executor_is_a_host_with_all_its_cores(story: Story) -> None:
    for task in (0, 1):
        assert f"host executor-{task}-" in story.trained.out
    assert story.trained.out.count("joins: 2 cores at 127.0.0.1") == 2


def test_the_traceback_of_the_script_comes_last(story: Story) -> None:
    assert story.failed.code == 1, story.failed.out
    last = story.failed.out[story.failed.out.rindex("Traceback") :]
    assert "RuntimeError: the dog ate my gradient" in last
    assert "org.apache" not in story.failed.out


def test_java_prints_to_a_file_of_the_run(story: Story) -> None:
    assert "WARN" not in story.trained.out
    assert "WARN" in (story.folder / "run" / "logs" / "spark.log").read_text()


def test_nothing_is_left_on_the_cluster(story: Story) -> None:
    assert story.left == []
    assert list((story.folder / "cache" / "agents").iterdir()) == []
    assert [name for name in os.listdir("/dev/shm") if "paceline" in name] == []
