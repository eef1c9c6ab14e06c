"""A run on hosts that are network namespaces: its supervisor in one namespace, and an agent in each of the others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil

from paceline.clients.observer import Observer
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir
from paceline.testing.launch import Launched
from paceline.testing.network import Kept, Network, PortCut, Way
from paceline.wire.token import new_token

SUPERVISOR = "supervisor"
PORT = 7411
_LOOK_S = 0.02


class Stuck(Exception):
    """The run did not reach an awaited state in time; the message has its output."""


class HostCluster:
    """A context manager: `hosts` are namespaces with an agent each. `start` starts the run, `agent` an agent.

    The run directory is `run`, or a folder in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[str],
        env: Mapping[str, str] | None = None,
        run: Path | None = None,
        cores: int = 2,
    ) -> None:
        """Agents offer so many `cores`, unless they are started with another number."""
        self._cores = cores
        self.folder = folder
        self.hosts = tuple(hosts)
        self.run_dir = RunDir(run or folder / "run")
        self.token = folder / "hosts.token"
        self._env = {**(env or {}), "PACELINE_CACHE": str(folder / "cache")}
        self._network = Network([SUPERVISOR, *hosts], Kept(SUPERVISOR, PORT))
        self._agents: dict[str, Launched] = {}
        self._launched: list[Launched] = []
        self._run: Launched | None = None
        self._observer: Observer | None = None

    def __enter__(self) -> HostCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_token().hex())
        self._network.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        for launched in self._launched:
            launched.end()
        for agent in self._agents.values():
            end_all(agent)
        self._network.close()

    # ------------------------------------------------------------ processes

    def address(self, node: str) -> str:
        """The address of the supervisor or of a host."""
        return self._network.address(node)

    def start(self, *words: object, node: str = SUPERVISOR, out: str = "run.txt") -> Launched:
        """Start ``paceline run`` with the options for hosts and `words`, in the namespace of `node`."""
        engine = ["--engine", "hosts", "--listen", f"{self.address(node)}:{PORT}", "--token-file", self.token]
        self._run = self.launch(node, ["run", "--dir", self.run_dir.path, *engine, *words], out)
        return self._run

    @property
    def run(self) -> Launched:
        """The ``paceline run`` that supervises the run now."""
        assert self._run is not None
        return self._run

    def kill_supervisor(self) -> None:
        """Kill ``paceline run`` with SIGKILL. The coordinator, its child, ends by itself."""
        self.run.process.kill()
        self.run.process.wait()

    def adopt(self, node: str = SUPERVISOR) -> Launched:
        """Start ``paceline run --adopt``, which goes on with the run of a supervisor that was killed."""
        self._run = self.launch(node, ["run", "--adopt", self.run_dir.path], "run.txt")
        return self._run

    def drain(self, host: str) -> int | None:
        """Ask by ``paceline drain`` that a host be emptied; returns the exit code of the command."""
        return self.launch(SUPERVISOR, ["drain", self.run_dir.path, host], "drain.txt").wait(20.0)

    def launch(self, node: str, words: Sequence[object], out: str) -> Launched:
        """Start a ``paceline`` command in the namespace of `node`."""
        with self._network.inside(node):
            launched = Launched(words, self.folder / out, self._env)
        self._launched.append(launched)
        return launched

    def agent(self, host: str, *words: object, dials: str = SUPERVISOR, cores: int | None = None) -> Launched:
        """Start the agent of a host."""
        address = f"{self.address(dials)}:{PORT}"
        command = [
            "agent",
            address,
            "--token-file",
            self.token,
            "--name",
            host,
            "--cores",
            cores or self._cores,
            *words,
        ]
        with self._network.inside(host):
            self._agents[host] = Launched(command, self.folder / f"agent-{host}.txt", self._env)
        return self._agents[host]

    def kill(self, host: str) -> None:
        """Kill all processes of a host at once, as a loss of power does."""
        end_all(self._agents[host])

    def terminate(self, host: str) -> None:
        """Send SIGTERM to the agent of a host: a notice for the whole host."""
        self._agents[host].process.send_signal(signal.SIGTERM)

    def agent_code(self, host: str) -> int | None:
        """The exit code of a host's agent; None while it runs."""
        return self._agents[host].code

    def family(self) -> list[psutil.Process]:
        """The agents and all their descendants."""
        return [process for agent in self._agents.values() for process in agent.family()]

    # ------------------------------------------------------------ the network

    def inside(self, node: str) -> AbstractContextManager[None]:
        """Run this thread, and all processes that it starts, in the namespace of `node` during the block."""
        return self._network.inside(node)

    def close_ways(self, ways: Collection[Way]) -> None:
        """Close exactly these ways between roles of hosts and of the supervisor. Agents reach the supervisor."""
        self._network.close_ways(ways)

    @contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Cut a host off from all hosts and the supervisor during the block."""
        with self.cut_agent(host), self.cut_roles(host):
            yield

    @contextmanager
    def cut_agent(self, host: str) -> Iterator[None]:
        """Cut the agent of a host off from its supervisor during the block. The roles of the host reach all others."""
        self._network.cut_ports([PortCut(host, SUPERVISOR, PORT)])
        try:
            yield
        finally:
            self._network.cut_ports(())

    @contextmanager
    def cut_roles(self, host: str) -> Iterator[None]:
        """Cut the roles of a host off from the coordinator and other hosts; its agent reaches the supervisor."""
        peers = [node for node in (SUPERVISOR, *self.hosts) if node != host]
        self.close_ways([*((host, peer) for peer in peers), *((peer, host) for peer in peers)])
        try:
            yield
        finally:
            self.close_ways(())

    # ------------------------------------------------------------ the status

    def status(self, node: str = SUPERVISOR) -> Status | None:
        """The status that the coordinator reports; None while none answers."""
        with self._network.inside(node):
            try:
                if self._observer is None:
                    self._observer = Observer(self.run_dir.coordinator, self.run_dir.token())
                return self._observer.status(timeout_s=0.5)
            except (TransportError, UsageError):
                return None

    def stop(self) -> None:
        """End the job at its last committed version."""
        assert self._observer is not None
        with self._network.inside(SUPERVISOR):
            self._observer.stop(-1, "the campaign is over", at_once=True, timeout_s=20.0)

    def forget(self) -> None:
        """End the session with the coordinator: the next status opens a new one."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def until(self, reached: Callable[[Status], bool], what: str, timeout_s: float = 60.0) -> Status:
        """Wait for a status for which `reached` holds.

        Raises:
            Stuck: none came within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        status = None
        while time.monotonic() < deadline:
            status = self.status() or status
            if status is not None and reached(status):
                return status
            time.sleep(_LOOK_S)
        texts = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.txt")))
        raise Stuck(f"waited {timeout_s:.0f} s for {what}; last status: {status}\n{texts}")


def end_all(launched: Launched) -> None:
    """Kill a command and all its descendants at once, and wait for it."""
    family = launched.family()
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    launched.process.wait()
    psutil.wait_procs([process for process in family if process.pid != launched.process.pid], timeout=10.0)


def has_hosts(status: Status, hosts: Sequence[str], replicas: int) -> bool:
    """Whether each of `hosts` carries a role that takes part, and every block has its copies."""
    there = {process.host for process in status.processes}
    placed = status.placement
    return there.issuperset(hosts) and placed.blocks > 0 and not (replicas and (placed.short or placed.building))


def figures(values: Sequence[float]) -> dict[str, Any]:
    """Median, 95th percentile and largest of some seconds."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95)]
    return {"count": len(ordered), "p50": round(at[0], 2), "p95": round(at[1], 2), "max": round(ordered[-1], 2)}
