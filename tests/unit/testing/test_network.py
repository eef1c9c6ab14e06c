"""Network namespaces and the traffic between them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from paceline.cli.chaos import command
from paceline.errors import UsageError
from paceline.runtime.addresses import own_address
from paceline.testing import network as network_module
from paceline.testing.chaos.campaigns import CAMPAIGNS, SCRIPT
from paceline.testing.network import Kept, Network, PortCut, Way, problem

NODES = ["coordinator", "server-0", "server-1"]
_why = problem()
as_root = pytest.mark.skipif(_why is not None, reason=str(_why))


def test_a_machine_without_namespaces_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert problem() == "network namespaces need root: run the campaign as root" or "iproute2" in str(problem())
    with pytest.raises(UsageError):
        Network(NODES)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert problem() == "the command `ip` is missing: install the package iproute2"


def test_a_campaign_that_cannot_cut_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network_module, "problem", lambda: "network namespaces need root: run the campaign as root")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["--cut", "one-way=3", "--json", "figures.json", str(SCRIPT)])
    assert done.exit_code == 0
    assert done.output == "chaos: skipped, nothing was cut: network namespaces need root: run the campaign as root\n"
    assert json.loads(Path("figures.json").read_text())["skipped"]
    assert not Path("runs").exists()
    monkeypatch.setitem(cast(dict[str, str], CAMPAIGNS), "one", "--cut one-way=1")
    named = CliRunner().invoke(command, ["--campaign", "one"])
    assert named.exit_code == 0, named.output
    assert "one: skipped, nothing was cut" in named.output


@pytest.fixture
def net() -> Iterator[Network]:
    with Network(NODES) as made:
        yield made


def reaches(net: Network, one: str, other: str, wait_s: float = 0.3) -> bool:
    """Return whether a datagram arrives at the other node."""
    with net.inside(other):
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((net.address(other), 0))
    with net.inside(one):
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with there, here:
        there.settimeout(wait_s)
        here.sendto(b"hello", there.getsockname())
        try:
            return there.recv(100) == b"hello"
        except TimeoutError:
            return False


@as_root
def test_a_cut_closes_only_its_direction(net: Network) -> None:
    assert reaches(net, "server-0", "server-1")
    net.close_ways({("server-0", "server-1")})
    assert not reaches(net, "server-0", "server-1")
    assert reaches(net, "server-1", "server-0")
    assert reaches(net, "server-0", "coordinator")
    net.close_ways({("server-1", "server-0")})
    assert reaches(net, "server-0", "server-1"), "a direction that is no longer cut is open"
    assert not reaches(net, "server-1", "server-0")
    net.close_ways(())
    assert reaches(net, "server-1", "server-0")


def echoes(net: Network, one: str, other: str, port: int) -> bool:
    """Return whether a new connection of `one` to a port of `other` is accepted."""
    with net.inside(other):
        there = socket.create_server((net.address(other), port))
    with net.inside(one):
        here = socket.socket()
    with there, here:
        here.settimeout(0.3)
        try:
            here.connect(there.getsockname())
            return True
        except TimeoutError:
            return False


@as_root
def test_a_cut_by_port_closes_that_port(net: Network) -> None:
    net.cut_ports([PortCut("server-0", "coordinator", 7411)])
    assert not echoes(net, "server-0", "coordinator", 7411)
    assert echoes(net, "server-0", "coordinator", 7412)
    assert echoes(net, "coordinator", "server-0", 7412), "connections the other way are of no port"
    assert echoes(net, "server-1", "coordinator", 7411), "others are not cut"
    assert echoes(net, "server-0", "server-1", 7411)
    net.cut_ports([])
    assert echoes(net, "server-0", "coordinator", 7411)


@as_root
@pytest.mark.parametrize("way", [("server-0", "coordinator"), ("coordinator", "server-0")])
def test_a_cut_between_nodes_leaves_the_kept_port_which_a_cut_by_port_closes(way: Way) -> None:
    with Network(NODES, Kept("coordinator", 7411)) as net:
        net.close_ways({way})
        assert not echoes(net, "server-0", "coordinator", 7412)
        assert not echoes(net, "coordinator", "server-0", 7411), "the port of another node is not kept"
        assert echoes(net, "server-0", "coordinator", 7411)
        net.cut_ports([PortCut("server-0", "coordinator", 7411)])
        assert not echoes(net, "server-0", "coordinator", 7411)
        assert echoes(net, "server-1", "coordinator", 7411), "others are not cut"
        net.cut_ports([])
        assert echoes(net, "server-0", "coordinator", 7411)
        net.close_ways(())
        assert echoes(net, "server-0", "coordinator", 7412)


@as_root
def test_a_connection_outlives_a_cut_of_its_port(net: Network) -> None:
    with net.inside("coordinator"):
        listener = socket.create_server((net.address("coordinator"), 7411))
    with net.inside("server-0"):
        here = socket.create_connection(listener.getsockname())
    there, _ = listener.accept()
    with listener, here, there:
        for sender, receiver in ((here, there), (there, here)):
            receiver.settimeout(0.3)
            net.cut_ports([PortCut("server-0", "coordinator", 7411)])
            sender.sendall(b"late")
            with pytest.raises(TimeoutError):
                receiver.recv(100)
            net.cut_ports([])
            receiver.settimeout(5.0)
            assert receiver.recv(100) == b"late"


@as_root
def test_processes_start_inside_a_namespace(net: Network) -> None:
    network = "10.93.0.0/24"
    code = f"from paceline.runtime.addresses import own_address; print(own_address({network!r}))"
    words = [*net.command("server-1"), sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == net.address("server-1")
    with net.inside("server-1"):
        assert own_address(network) == net.address("server-1")
    with pytest.raises(UsageError, match="no address in that network"):
        own_address(network)  # not an address of this machine


@as_root
def test_no_namespace_is_left_after_close_or_after_a_killed_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError), Network(NODES):
        raise KeyError
    assert not [name for name in network_module._namespaces() if name.startswith(network_module._own_prefix())]
    # its process has ended, and another process may have the pid now
    monkeypatch.setattr(network_module, "_own_prefix", lambda: f"{network_module._PREFIX}1.12345-")
    killed = Network(["server-0"])
    killed.__enter__()
    assert "paceline-chaos-1.12345-server-0" in network_module._namespaces()
    monkeypatch.undo()
    with Network(NODES) as other:
        assert not [name for name in network_module._namespaces() if "-1.12345-" in name]
        network_module.remove_leftovers()
        assert Path("/run/netns", f"{other._prefix}switch").exists(), "namespaces of living processes stay"
