from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.core.hosts.node_agents import AgentEnd
from paceline.core.hosts.node_shares import Node, Share, Wanted
from paceline.engines.carriers import ray_cluster
from paceline.engines.carriers.ray import RayAgents
from paceline.engines.carriers.ray_actor import agent_environment
from paceline.engines.carriers.ray_cluster import AgentEnded, AgentUp, ClusterNews, NodesSeen, RayCluster
from paceline.engines.role_runner import HostLeaves, Note
from paceline.errors import UsageError

TOKEN = bytes(range(32))
NODES = NodesSeen((Node("n1", 2, 2), Node("n2", 2, 2), Node("head", 0, 0)))


class FakeCluster:
    """A cluster that notes what it is asked for, and tells what a test puts into `heard`."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local
        self.own_address = "10.0.0.1"
        self.heard: list[ClusterNews] = []
        self.started: dict[str, tuple[Share, list[str], str]] = {}
        self.stopped: list[str] = []
        self.is_closed = False

    def start(self, name: str, share: Share, words: list[str], token: str) -> None:
        self.started[name] = (share, words, token)

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def address_of(self, node: str) -> str:
        return {"n1": "10.0.0.2", "n2": "10.0.0.3"}[node]

    def news(self) -> Iterator[ClusterNews]:
        heard, self.heard = self.heard, []
        yield from heard

    def close(self) -> None:
        self.is_closed = True


def carrier(cluster: FakeCluster, address: str = "10.0.0.1:4000") -> RayAgents:
    made = RayAgents(cluster)  # type: ignore[arg-type]
    made.begin(address, TOKEN)
    return made


def test_an_actor_gets_the_words_of_the_agent_and_the_token_apart_from_them() -> None:
    cluster = FakeCluster()
    agents = carrier(cluster)
    cluster.heard.append(NODES)
    assert agents.tick({}, Wanted(4, 2)) == []
    share, words, token = cluster.started["ray-n1"]
    assert " ".join(words) == "agent 10.0.0.1:4000 --token-file - --name ray-n1 --cores 2 --address 10.0.0.2"
    assert (share.reserved, token) == (2, TOKEN.hex())
    assert TOKEN.hex() not in words
    assert agents.coming({}) == 2


def test_an_agent_finds_its_own_address_when_the_user_has_chosen_the_network() -> None:
    cluster = FakeCluster()
    agents = carrier(cluster, "192.168.7.1:4000")
    cluster.heard.append(NODES)
    agents.tick({}, Wanted(4, 2))
    assert "--address" not in cluster.started["ray-n1"][1]


def test_a_local_cluster_is_told() -> None:
    (note,) = carrier(FakeCluster(is_local=True)).tick({}, Wanted(2, 1))
    assert isinstance(note, Note)
    assert "a local one is started, and ends with the run" in note.text


def test_a_run_that_no_node_can_carry_ends_with_the_reason_of_the_nodes() -> None:
    cluster = FakeCluster()
    agents = carrier(cluster)
    cluster.heard.append(NODES)
    agents.tick({}, Wanted(4, 2))
    why = "ray-n1 has python 3.12, the supervisor has 3.11: use the same minor version of Python on every host"
    cluster.heard += [AgentUp("ray-n1"), *(AgentEnded(f"ray-{n}", AgentEnd(why, final=True)) for n in ("n1", "n2"))]
    with pytest.raises(UsageError, match=r"0 of 2 nodes joined; node n1: .* has python 3\.12"):
        agents.tick({}, Wanted(4, 2))


def test_a_host_that_the_run_cannot_use_any_more_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("paceline.engines.carriers.ray.time.monotonic", lambda: now[0])
    cluster = FakeCluster()
    agents = carrier(cluster)
    cluster.heard.append(NODES)
    agents.tick({}, Wanted(4, 1))
    joined = {"ray-n1": 2, "ray-n2": 0}
    agents.tick(joined, Wanted(2, 1))
    now[0] += 11.0
    assert agents.tick(joined, Wanted(2, 1)) == [HostLeaves("ray-n2")]


def test_the_threads_of_roles_are_not_those_that_ray_sets_for_an_actor() -> None:
    now = {"PATH": "/bin", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}
    assert agent_environment(now, {"PATH": "/bin"}) == {"PATH": "/bin"}
    first = {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "1"}
    assert agent_environment(now, first) == {"PATH": "/bin", **first}


# ---------------------------------------------------------------- bad input


def test_a_missing_extra_names_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[ray\]'"):
        RayCluster("")


class Services:
    """What Ray finds: always `found`."""

    def __init__(self, found: str | None) -> None:
        self.found = found

    def canonicalize_bootstrap_address(self, address: str | None) -> str | None:
        if self.found is None:
            raise ConnectionError("Could not find any running Ray instance")
        return self.found


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def find(address: str, found: str | None, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda name: Services(found))
    return ray_cluster._find(address)


def test_an_address_where_nobody_answers_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, dead_port: int
) -> None:
    with pytest.raises(UsageError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{dead_port} within 5 s"):
        find(f"127.0.0.1:{dead_port}", f"127.0.0.1:{dead_port}", monkeypatch)
    with pytest.raises(UsageError, match=r"--ray-address auto: no Ray cluster answers"):
        find("auto", None, monkeypatch)


def test_without_an_address_and_a_cluster_a_local_one_is_started(
    monkeypatch: pytest.MonkeyPatch, dead_port: int
) -> None:
    assert find("", None, monkeypatch) is None
    assert find("", f"127.0.0.1:{dead_port}", monkeypatch) is None, "the file of a cluster that has ended"


def test_a_ray_client_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ray job submit"):
        find("ray://head:10001", None, monkeypatch)
