"""A Ray cluster as a carrier of agents. The only module that calls Ray; it does so in a thread of its own.

A call to Ray may take long while the head node of the cluster does not answer, and the supervisor must not wait.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.hosts.node_agents import AgentEnd
from paceline.core.hosts.node_shares import Node, Share
from paceline.engines.agent_folder import AgentFolder
from paceline.engines.carriers.ray_actor import AgentActor
from paceline.engines.host_facts import own_cores
from paceline.errors import UsageError
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_USAGE

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Seconds that a cluster has to answer at its address."""
_LOOK_S = 1.0
_STEP_S = 0.1
_CLOSE_S = 4.0
_RUNTIME = {"env_vars": {"RAY_worker_niceness": "0"}}  # otherwise Ray runs actors, and so roles, at niceness 15
_RELAY = "listen_error_messages"  # the thread of Ray that prints errors of the cluster; no option ends it
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_SHORT = 8  # characters of a node's id that name it


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """The nodes that are alive now."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AgentUp:
    """The process of an agent has been started."""

    name: str


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """An agent has ended."""

    name: str
    end: AgentEnd


ClusterNews = NodesSeen | AgentUp | AgentEnded


@dataclass(slots=True)
class _Carried:
    """The actor of an agent, and the answers that are awaited: that it has begun, and how it has ended."""

    actor: Any
    begun: Any
    ended: Any


class RayCluster:
    """The connection to a Ray cluster: the one at `address`, the one of this machine, or a new one on this machine."""

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT, ``auto``, or empty: then a cluster is started here if there is none.

        Raises:
            UsageError: Ray is not installed, or nobody answers.
        """
        self._ray = _import_ray()
        self._folder: AgentFolder | None = None
        self._is_guest = bool(self._ray.is_initialized())  # the caller's connection, which the caller ends
        self._restore = contextlib.ExitStack()
        if self._is_guest:
            self._check_guest(address)
        else:
            self._connect(_find(address))
        self.is_local = self._folder is not None
        """Whether the cluster was started for this run, and ends with it."""
        here = self._ray.get_runtime_context().get_node_id()
        self.own_address: str = next(node["NodeManagerAddress"] for node in self._ray.nodes() if node["NodeID"] == here)
        """The address of this machine in the cluster."""
        self._orders: queue.SimpleQueue[tuple[str, Share, list[str], str] | str] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[ClusterNews] = queue.SimpleQueue()
        self._ids: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._carried: dict[str, _Carried] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)
        self._thread.start()

    def _check_guest(self, address: str) -> None:
        """Check that the connection of this program can be used.

        Raises:
            UsageError: it is a Ray Client's, or to another cluster than that at `address`.
        """
        if importlib.import_module("ray.util.client").ray.is_connected():
            raise UsageError("--engine ray: this program uses a Ray Client (ray://); call ray.shutdown() before")
        mine = str(self._ray.get_runtime_context().gcs_address)
        if address not in ("", "auto", mine):
            raise UsageError(
                f"--ray-address {address}: this program is connected to {mine}; call ray.shutdown() before"
            )

    def _connect(self, address: str | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        log = logging.getLogger("ray")
        self._restore.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # it repeats what the run reports by itself
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._folder = AgentFolder(Path(tempfile.gettempdir()), "ray")
            options |= {"num_cpus": own_cores(), "include_dashboard": False, "_temp_dir": str(self._folder.path)}
            # Otherwise Ray takes the address of a network card, listens on all interfaces, and asks for no token.
            options["_node_ip_address"] = "127.0.0.1"
            constants: Any = importlib.import_module("ray._private.ray_constants")
            self._restore.callback(setattr, constants, "ENABLE_RAY_CLUSTER", constants.ENABLE_RAY_CLUSTER)
            self._restore.callback(os.environ.pop, _CLUSTERS, None)
            os.environ[_CLUSTERS] = "0"
            constants.ENABLE_RAY_CLUSTER = False
            address = "local"
        before = signal.getsignal(signal.SIGTERM)
        try:
            with _without_relay():
                self._ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            self._end_local()
            advice = "if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            raise UsageError(f"--ray-address {address}: {_last_line(error)}; {advice}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray has put its own there

    # ------------------------------------------------------------ the thread of the supervisor

    def start(self, name: str, share: Share, words: list[str], token: str) -> None:
        """Start the agent called `name` by ``paceline WORDS``."""
        self._orders.put((name, share, words, token))

    def stop(self, name: str) -> None:
        """End the actor of an agent."""
        self._orders.put(name)

    def address_of(self, node: str) -> str | None:
        """The address of a node in the cluster; None if it has just gone."""
        return self._addresses.get(node)

    def news(self) -> Iterator[ClusterNews]:
        """What has happened since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._news.get_nowait()

    def close(self) -> None:
        """End every actor, and the connection; also the cluster, if it was started for this run."""
        self._closing.set()
        self._thread.join(2 * _CLOSE_S)
        if not self._is_guest:
            with contextlib.suppress(Exception):
                self._ray.shutdown()
        self._end_local()

    def _end_local(self) -> None:
        self._restore.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    # ------------------------------------------------------------ the thread of its own

    def _serve(self) -> None:
        next_look = 0.0
        while not self._closing.is_set():
            try:
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + _LOOK_S
                    self._look()
                self._obey()
                self._wait(_STEP_S)
            except Exception as error:  # Ray raises many kinds; the agents do not depend on this thread
                logger.warning("the Ray cluster does not answer: %s", _last_line(error))
                self._closing.wait(_LOOK_S)
        deadline = time.monotonic() + _CLOSE_S
        with contextlib.suppress(Exception):
            while self._carried and time.monotonic() < deadline:
                self._wait(_STEP_S)
            for name in list(self._carried):
                self._kill(name)

    def _look(self) -> None:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        free = importlib.import_module("ray._private.state").available_resources_per_node()
        self._ids = {node["NodeID"][:_SHORT]: node["NodeID"] for node in alive}
        self._addresses = {node["NodeID"][:_SHORT]: node["NodeManagerAddress"] for node in alive}
        nodes = []
        for node in alive:
            cores = int(node["Resources"].get("CPU", 0))
            nodes.append(
                Node(node["NodeID"][:_SHORT], cores, min(cores, int(free.get(node["NodeID"], {}).get("CPU", 0))))
            )
        self._news.put(NodesSeen(tuple(nodes)))

    def _obey(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if isinstance(order, str):
                    self._kill(order)
                else:
                    self._launch(*order)

    def _launch(self, name: str, share: Share, words: list[str], token: str) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        place = strategies.NodeAffinitySchedulingStrategy(self._ids[share.node], soft=False)
        remote = self._ray.remote(num_cpus=share.reserved, max_restarts=0, max_task_retries=0)(AgentActor)
        actor = remote.options(scheduling_strategy=place, runtime_env=_RUNTIME).remote(words, token)
        self._carried[name] = _Carried(actor, actor.begun.remote(), actor.ended.remote())

    def _wait(self, timeout_s: float) -> None:
        """Wait for the next answer of an actor."""
        awaited = {}
        for name, carried in self._carried.items():
            awaited[carried.begun if carried.begun is not None else carried.ended] = name
        if not awaited:
            self._closing.wait(timeout_s)
            return
        ready, _ = self._ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        for reference in ready:
            self._answered(awaited[reference], reference)

    def _answered(self, name: str, reference: Any) -> None:
        carried = self._carried[name]
        try:
            found = self._ray.get(reference)
        except Exception as error:
            self._kill(name)
            final = "No module named" in str(error)
            self._news.put(AgentEnded(name, AgentEnd(_why(error), final=final, died=not final)))
            return
        if carried.begun is not None:
            carried.begun = None
            self._news.put(AgentUp(name))
            return
        code, lines = found
        self._kill(name)
        reason = lines.splitlines()[-1].removeprefix(f"paceline: host {name}: ") if lines else f"exit code {code}"
        self._news.put(AgentEnded(name, AgentEnd(reason, left=code == EXIT_DONE, final=code == EXIT_USAGE)))

    def _kill(self, name: str) -> None:
        carried = self._carried.pop(name, None)
        if carried is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(carried.actor)


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("--engine ray: Ray is not installed here; run: pip install 'paceline[ray]'") from None


@contextlib.contextmanager
def _without_relay() -> Iterator[None]:
    """Keep Ray from printing the losses of nodes in the terminal of the run, which reports lost hosts by itself."""
    module = importlib.import_module("ray._private.worker")
    relay = getattr(module, _RELAY, None)
    setattr(module, _RELAY, lambda *_: None)
    try:
        yield
    finally:
        setattr(module, _RELAY, relay)


def _find(address: str) -> str | None:
    """The address of a cluster that answers; None if none is named and there is none.

    Raises:
        UsageError: nobody answers there, or it has another form.
    """
    if address.startswith("ray://"):
        raise UsageError(
            f"--ray-address {address}: a Ray Client cannot carry a run. Run this command on a machine of the cluster, "
            "or by `ray job submit -- paceline run …`"
        )
    services = importlib.import_module("ray._private.services")
    try:
        found = services.canonicalize_bootstrap_address(address or None)
    except (ConnectionError, ValueError):
        found = None
    is_named = bool(address or os.environ.get("RAY_ADDRESS"))
    if found is not None and _answers(found):
        return str(found)
    if not is_named:
        return None
    where = found or address
    raise UsageError(
        f"--ray-address {address or 'auto'}: no Ray cluster answers at {where} within {ANSWER_S:.0f} s; "
        "start one (`ray start --head`), give its HOST:PORT, or leave the option out: a local one is started"
    )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S):
            return True
    except (OSError, ValueError):
        return False


def _why(error: Exception) -> str:
    """Why an actor has ended, in one line."""
    text = str(error)
    if "No module named" in text:
        found = next(line.strip() for line in text.splitlines() if "No module named" in line)
        return f"{found}: install the same version of Paceline on every node"
    return _last_line(error)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
