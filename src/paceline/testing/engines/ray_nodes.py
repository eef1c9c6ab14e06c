"""A Ray cluster on this machine: a head without cores, and nodes that can be killed and added."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import UsageError

_STORE_NBYTES = 80 << 20  # the least that Ray accepts
_IP = "127.0.0.1"  # Ray listens on all interfaces for any other address
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # otherwise Ray replaces 127.0.0.1 by the address of a network card
}


class RayNodes:
    """An `EngineCluster`. All nodes have one IP address. The head carries no roles: it cannot be lost.

    Ray keeps its files in a folder of its own, which `close` removes. Use one at a time in a process.
    """

    def __init__(self, cores: int = 2, *, dashboard: bool = False) -> None:
        """Each node has `cores` cores. Jobs can be submitted to a cluster with a `dashboard`."""
        self._cores = cores
        self._dashboard = dashboard
        self._folder = Path(tempfile.mkdtemp(prefix="pray-", dir="/tmp"))  # the paths of Ray's sockets are long
        self._before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", *_SETTINGS)}
        self._cluster: Any = None
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """HOST:PORT of the cluster."""
        return str(self._cluster.address)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for commands that shall see the files of this cluster."""
        return {"RAY_TMPDIR": str(self._folder), **_SETTINGS}

    @property
    def dashboard(self) -> str:
        """The URL to which jobs are submitted."""
        return f"http://{self._cluster.webui_url}"

    def start(self, nodes: int) -> list[str]:
        """See `EngineCluster.start`.

        Raises:
            UsageError: Ray is not installed.
        """
        (self._folder / "ray").mkdir()
        os.environ.update(self.environment)
        try:
            utils = importlib.import_module("ray.cluster_utils")
        except ImportError:
            raise UsageError("Ray is not installed here; run: pip install 'paceline[ray]'") from None
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        head = {"num_cpus": 0, "include_dashboard": self._dashboard, **_shared()}
        self._cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        for _ in range(nodes):
            self.add()
        return ["--engine", "ray", "--ray-address", self.address]

    def nodes(self) -> list[str]:
        """See `EngineCluster.nodes`."""
        return list(self._nodes)

    def kill(self, node: str) -> None:
        """See `EngineCluster.kill`."""
        lost = self._nodes.pop(node)
        family = []
        for raylet in lost.all_processes["raylet"]:
            with contextlib.suppress(psutil.Error):
                family += [psutil.Process(raylet.process.pid), *psutil.Process(raylet.process.pid).children(True)]
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        lost.kill_all_processes(check_alive=False, allow_graceful=False)
        self._cluster.worker_nodes.remove(lost)

    def add(self) -> str:
        """See `EngineCluster.add`."""
        node = self._cluster.add_node(num_cpus=self._cores, **_shared())
        name = str(node.node_id)[:8]
        self._nodes[name] = node
        return name

    def close(self) -> None:
        """See `EngineCluster.close`."""
        for node in self.nodes():
            self.kill(node)
        if self._cluster is not None:
            self._cluster.shutdown()
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self._folder, ignore_errors=True)


def _shared() -> dict[str, Any]:
    return {"object_store_memory": _STORE_NBYTES, "node_ip_address": _IP}
