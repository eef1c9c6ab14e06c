"""A run on a Ray cluster of two nodes: the result is that of one machine, and nothing stays, whatever ends the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_hosts import ROWS, make_code
from tests.kit.real_runs import PACELINE, ROOT, Ended, environment, live, run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cold")]
STARTED_BY = "PYTEST_STARTED_BY"  # the mark of a test's processes: the cluster outlives a test


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster, whose agents keep their files in `cache`."""

    address: str
    nodes: tuple[str, ...]
    env: dict[str, str]
    cache: Path

    @property
    def words(self) -> list[str]:
        return ["--engine", "ray", "--ray-address", self.address, "--checkpoint-every", "0"]

    def left(self) -> list[str]:
        """The agents and roles that still run, and the folders of agents. The hygiene of tests finds shared memory."""
        found = [str(path) for path in self.cache.glob("agents/*")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words, env = " ".join(process.cmdline()), process.environ()
                is_ours = env.get("PACELINE_CACHE") == str(self.cache)
                if is_ours and re.search(r"paceline (agent|run)|paceline\.runtime", words):
                    found.append(f"{process.pid}: {words[:200]}")
        return found

    def until_empty(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while left := self.left():
            assert time.monotonic() < deadline, "\n".join(left)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cache = tmp_path_factory.mktemp("cache")
    env = {name: value for name, value in environment(PACELINE_CACHE=str(cache)).items() if name != STARTED_BY}
    command = [sys.executable, str(ROOT / "tests" / "kit" / "ray_holder.py"), "2"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        line = holder.stdout.readline()
        assert line, "the cluster did not start; pip install 'paceline[ray]' installs what this test needs"
        shown = json.loads(line)
        yield Cluster(shown["address"], tuple(shown["nodes"]), {**shown["env"], "PACELINE_CACHE": str(cache)}, cache)
        holder.stdin.close()
        holder.wait(60.0)


def test_the_result_is_that_of_one_machine_and_nothing_is_left(cluster: Cluster, tmp_path: Path) -> None:
    script = make_code(tmp_path / "code")
    work, steps = script.parent, ["--max-steps", "30", script, "--quick"]
    words = [*cluster.words, "-w", "2", "-s", "2", "--replicas", "1"]
    ended = run([*PACELINE, "run", "--dir", "run", *words, *steps], work, 120.0, **cluster.env)
    ended.check()
    for node in cluster.nodes:
        assert f"host ray-{node} joins: 2 cores at 127.0.0.1" in ended.out
    assert f"trained on {ROWS} rows" in ended.out
    assert "(raylet)" not in ended.out
    assert (work / "saved" / "model.safetensors").stat().st_size > 100
    run([*PACELINE, "run", "--dir", "one", "-w", "1", "-s", "1", "--checkpoint-every", "0", *steps], work).check()
    digests = [json.loads((work / name / "summary.json").read_text())["digest"] for name in ("run", "one")]
    assert digests[0] == digests[1]
    cluster.until_empty(10.0)


def test_a_script_error_on_a_node_ends_the_run_with_its_traceback(cluster: Cluster, tmp_path: Path) -> None:
    ended = fail(cluster, tmp_path, make_code(tmp_path / "code"), "--raises").check(1)
    last = ended.out[ended.out.rindex("Traceback") :]
    assert "RuntimeError: the dog ate my gradient" in last
    assert "ray.exceptions" not in ended.out
    cluster.until_empty(10.0)


def fail(cluster: Cluster, folder: Path, *words: object) -> Ended:
    command = [*PACELINE, "run", "--dir", "run", *cluster.words, "-w", "1", *words]
    return run(command, folder, 120.0, **cluster.env)


def carried(process: psutil.Process, cache: str) -> psutil.Process | None:
    """The process, if it is an agent of this cluster."""
    with contextlib.suppress(psutil.Error):
        is_agent = "agent" in process.cmdline() and process.name() != "sh"
        return process if is_agent and process.environ().get("PACELINE_CACHE") == cache else None
    return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_that_a_signal_ends_leaves_nothing_on_the_nodes(
    number: signal.Signals, cluster: Cluster, tmp_path: Path
) -> None:
    script = make_code(tmp_path / "code")
    cache = str(cluster.cache)
    with live(tmp_path, [*cluster.words, "-w", "2", "-s", "1"], script, **cluster.env) as running:
        running.until(lambda status: status.version > 3, 120.0)
        assert cluster.left() != []
        agents = [found for process in psutil.process_iter() if (found := carried(process, cache)) is not None]
        assert agents
        for agent in agents:
            (raylet,) = [parent for parent in agent.parents() if parent.name() == "raylet"]
            assert agent.nice() == raylet.nice(), "Ray lowers the priority of its actors"
        os.kill(running.process.pid, number)
        running.wait(30.0)
        running.close()
        cluster.until_empty(30.0)


def test_a_local_cluster_listens_on_the_loopback_device_alone_and_ends_with_the_run(tmp_path: Path) -> None:
    script, folder = make_code(tmp_path / "code"), {"RAY_TMPDIR": str(tmp_path), "TMPDIR": "/tmp"}
    options = ["--engine", "ray", "-w", "1", "-s", "1", "--checkpoint-every", "0"]
    with live(tmp_path, options, script, **folder, PACELINE_CACHE=str(tmp_path / "cache")) as running:
        running.until(lambda status: status.version > 3, 120.0)
        family = psutil.Process(running.process.pid).children(recursive=True)
        names, heard = [process.name() for process in family], set[str]()
        for process in family:
            with contextlib.suppress(psutil.Error):
                found = process.net_connections("inet")
                heard |= {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}
        assert "raylet" in names
        assert heard <= {"127.0.0.1", "::ffff:127.0.0.1"}
        running.process.send_signal(signal.SIGTERM)
        assert "a local one is started, and ends with the run" in running.wait(40.0).out
        running.close()
    _, alive = psutil.wait_procs(family, timeout=20.0)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_an_address_where_nobody_answers_is_named_within_seconds(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "--dir", "run", "--engine", "ray", "--ray-address", "127.0.0.2:9"]
    ended = run([*command, make_code(tmp_path / "code")], tmp_path, 60.0).check(2)
    assert "no Ray cluster answers at 127.0.0.2:9 within 5 s" in ended.out
    assert "leave the option out: a local one is started" in ended.out
