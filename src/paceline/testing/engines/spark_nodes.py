"""A standalone Spark cluster on this machine: a master, and workers that can be killed and added."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from paceline.errors import UsageError
from paceline.orphans import die_with_parent

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_START_S = 90.0


class SparkNodes:
    """An `EngineCluster`. All nodes are at 127.0.0.1, and each has one executor, with all its cores.

    Spark keeps its files in a folder of its own, which `close` removes. The cluster ends with this process.
    """

    def __init__(self, cores: int = 2, memory: str = "1g") -> None:
        """Each node offers `cores` cores and so much `memory`; the default of an executor is 1g."""
        self._cores = cores
        self._memory = memory
        self._folder = Path(tempfile.mkdtemp(prefix="paceline-spark-"))
        self._home = _home()
        self._master: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._added = 0
        self._port = _free_port()

    @property
    def address(self) -> str:
        """The URL of the master."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self, nodes: int) -> list[str]:
        """See `EngineCluster.start`."""
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._master = self._java("master", _MASTER, words)
        self._wait_for_master()
        for _ in range(nodes):
            self.add()
        return ["--engine", "spark", "--master", self.address]

    def _wait_for_master(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
                return
            if time.monotonic() > deadline or self._master is None or self._master.poll() is not None:
                raise UsageError(
                    f"the Spark master has not started: {(self._folder / 'master.log').read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def nodes(self) -> list[str]:
        """See `EngineCluster.nodes`: the host that a node carries, or its own name while it carries none."""
        return [_host_on(process) or name for name, process in self._nodes.items()]

    def _named(self, node: str) -> str:
        """The own name of the node that is called `node` in `nodes`."""
        return dict(zip(self.nodes(), self._nodes, strict=True)).get(node, node)

    def add(self) -> str:
        """See `EngineCluster.add`."""
        name, self._added = f"node-{self._added}", self._added + 1
        words = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", str(self._cores)]
        words += ["--memory", self._memory, "--work-dir", str(self._folder / name), self.address]
        self._nodes[name] = self._java(name, _WORKER, words)
        return name

    def kill(self, node: str) -> None:
        """See `EngineCluster.kill`: the executor with all its processes. Spark then starts another one in its place."""
        _kill(self._nodes[self._named(node)], itself=False)

    def remove(self, node: str) -> None:
        """Kill a node with Spark's worker there: nothing takes its place."""
        _kill(self._nodes.pop(self._named(node)), itself=True)

    def processes(self, node: str) -> list[psutil.Process]:
        """All processes of a node: the worker, its executor, agents and roles."""
        return _family(self._nodes[self._named(node)])

    def close(self) -> None:
        """See `EngineCluster.close`."""
        for node in list(self._nodes):
            self.remove(node)
        if self._master is not None:
            _kill(self._master, itself=True)
            self._master = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _java(self, name: str, main: str, words: list[str]) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        env["SPARK_LOCAL_DIRS"] = str(self._folder)
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), main, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )


def _home() -> Path:
    """Where pip has put Spark.

    Raises:
        UsageError: it is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError("Spark is not installed here; run: pip install 'paceline[spark]'")
    return Path(found.origin).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)]
    return []


def _host_on(process: subprocess.Popen[bytes]) -> str | None:
    """The name of the host whose agent is a descendant of a process; None if there is no agent."""
    for member in _family(process):
        with contextlib.suppress(psutil.Error, ValueError):
            words: list[str] = member.cmdline()
            if "agent" in words and "-m" in words:
                return words[words.index("--name") + 1]
    return None


def _kill(process: subprocess.Popen[bytes], *, itself: bool) -> None:
    """Kill all descendants of a process at once, and with `itself` the process, too."""
    family = [member for member in _family(process) if itself or member.pid != process.pid]
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    if itself:
        process.wait()
    psutil.wait_procs([member for member in family if member.pid != process.pid], timeout=10.0)
