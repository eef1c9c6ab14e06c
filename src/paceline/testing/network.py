"""Network namespaces on this machine that take the place of hosts, and cuts between them.

Every node has a namespace with one address. A bridge in one more namespace connects them. The machine's
own network is not changed, and no packet filter is needed: each namespace has a fixed table of neighbours, and a cut
replaces a neighbour's hardware address by an address that no node has. So a cut has a direction, takes effect at once,
sends no error to either side, and does not close connections. Rules by port select other routes: connections to the
`Kept` port use neighbours of their own, which no cut between nodes changes, and a cut by port leads to a neighbour that
does not exist.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from paceline.errors import UsageError

_PREFIX = "paceline-chaos-"
_FOLDER = Path("/run/netns")
_NETWORK = "10.93.0"
_KEPT_NETWORK = "10.93.1"  # the same nodes, as neighbours of which the hardware address never changes
_NOWHERE = "02:93:ff:ff:ff:ff"
_MAX_NODES = 250
_CLONE_NEWNET = 0x40000000
_LOST = f"{_NETWORK}.254"  # a neighbour that does not exist
_LOST_TABLE, _KEPT_TABLE = 93, 94
_FIRST_CUT, _KEPT_RULE = 100, 1000  # of two rules for a packet, the one with the lower number counts

Way = tuple[str, str]
"""A direction: from the first node to the second."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The TCP port `port` of `node`: its connections stay when ways between nodes are closed."""

    node: str
    port: int


@dataclass(frozen=True, slots=True)
class PortCut:
    """Close the connections of `node` to the TCP port `port` of `other`."""

    node: str
    other: str
    port: int


def problem() -> str | None:
    """The reason why this process cannot make network namespaces; None if it can."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        return "network namespaces need Linux"
    if shutil.which("ip") is None:
        return "the command `ip` is missing: install the package iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root: run the campaign as root"
    name = f"{_own_prefix()}probe"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        _ip("-n", name, "link", "add", "sw", "type", "bridge")
    except UsageError as error:
        return f"this machine refuses network namespaces: {error}"
    finally:
        with contextlib.suppress(UsageError):
            _ip("netns", "del", name)
    return None


class Network:
    """A context manager that makes connected namespaces for `nodes`, and removes them at its end.

    It also removes the namespaces of campaigns that were killed.
    """

    def __init__(self, nodes: Sequence[str], kept: Kept | None = None) -> None:
        """Check that namespaces can be made; `__enter__` makes them.

        Raises:
            UsageError: there are too many nodes, or this process cannot make namespaces.
        """
        if len(nodes) > _MAX_NODES:
            raise UsageError(
                f"at most {_MAX_NODES} processes can be cut, not {len(nodes)}: use fewer workers or servers"
            )
        if (why := problem()) is not None:
            raise UsageError(why)
        self._numbers = {node: number for number, node in enumerate(nodes, 1)}
        self._kept = kept
        self._prefix = _own_prefix()
        self._closed: set[Way] = set()
        self._cut_ports: tuple[PortCut, ...] = ()

    def address(self, node: str) -> str:
        """The address of a node."""
        return f"{_NETWORK}.{self._numbers[node]}"

    def command(self, node: str) -> list[str]:
        """The words that, put before a command, run it in the namespace of `node`."""
        return ["ip", "netns", "exec", self._prefix + node]

    def __enter__(self) -> Network:
        remove_leftovers()
        try:
            switch = self._prefix + "switch"
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "sw", "type", "bridge")
            _ip("-n", switch, "link", "set", "sw", "up")
            for node, number in self._numbers.items():
                self._attach(switch, node, number)
            for node in self._numbers:
                self._batch(node, [self._neighbour(other, True) for other in self._numbers if other != node])
                self._batch(node, self._keep(node))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all namespaces."""
        _remove(name for name in _namespaces() if name.startswith(self._prefix))

    def _attach(self, switch: str, node: str, number: int) -> None:
        """Make a namespace for `node` and connect it to the switch."""
        name = self._prefix + node
        _ip("netns", "add", name)
        here, there = ["link", "add", f"v{number}", "type", "veth"], ["peer", "name", "eth0", "address", _mac(number)]
        _ip("-n", switch, *here, *there, "netns", name)
        _ip("-n", switch, "link", "set", f"v{number}", "master", "sw", "up")
        address = f"addr add {_NETWORK}.{number}/24 dev eth0"
        lost = [f"neigh replace {_LOST} lladdr {_NOWHERE} nud permanent dev eth0"]
        lost += [f"route add {_NETWORK}.0/24 via {_LOST} dev eth0 table {_LOST_TABLE}"]
        self._batch(node, ["link set lo up", "link set eth0 up", address, *lost])

    def _neighbour(self, node: str, reached: bool) -> str:
        number = self._numbers[node]
        mac = _mac(number) if reached else _NOWHERE
        return f"neigh replace {_NETWORK}.{number} lladdr {mac} nud permanent dev eth0"

    def _keep(self, node: str) -> list[str]:
        """The routes of `node` for connections to the port that is kept."""
        if self._kept is None:
            return []
        is_here = node == self._kept.node
        lines = []
        for other in [name for name in self._numbers if name != node] if is_here else [self._kept.node]:
            number = self._numbers[other]
            lines += [f"neigh replace {_KEPT_NETWORK}.{number} lladdr {_mac(number)} nud permanent dev eth0"]
            route = f"{_NETWORK}.{number}/32 via {_KEPT_NETWORK}.{number} dev eth0 onlink"
            lines += [f"route add {route} table {_KEPT_TABLE}"]
        which = "ipproto tcp sport" if is_here else f"to {self.address(self._kept.node)} ipproto tcp dport"
        return [*lines, f"rule add pref {_KEPT_RULE} {which} {self._kept.port} lookup {_KEPT_TABLE}"]

    def _batch(self, node: str, lines: Sequence[str]) -> None:
        _ip("-n", self._prefix + node, "-batch", "-", text="\n".join(lines) + "\n")

    # ------------------------------------------------------------ cuts

    def close_ways(self, ways: Collection[Way]) -> None:
        """Close exactly these ways between nodes, except for the port that is kept, and open all others."""
        wanted = set(ways)
        for node in sorted({a for a, _ in wanted ^ self._closed}):
            changed = [b for a, b in wanted ^ self._closed if a == node]
            self._batch(node, [self._neighbour(other, (node, other) not in wanted) for other in sorted(changed)])
        self._closed = wanted

    def cut_ports(self, cuts: Sequence[PortCut]) -> None:
        """Close exactly the connections of `cuts`, in both directions, and open all others that were cut by port."""
        for verb, each in (("del", self._cut_ports), ("add", tuple(cuts))):
            for place, cut in enumerate(each):
                for node, rule in self._rules(cut, _FIRST_CUT + place).items():
                    self._batch(node, [f"rule {verb} {rule}"])
        self._cut_ports = tuple(cuts)

    def _rules(self, cut: PortCut, order: int) -> dict[str, str]:
        """The rule of a cut by port, for each of its two nodes."""
        ends = ((cut.node, cut.other, "dport"), (cut.other, cut.node, "sport"))
        return {
            node: f"pref {order} to {self.address(peer)} ipproto tcp {end} {cut.port} lookup {_LOST_TABLE}"
            for node, peer, end in ends
        }

    # ------------------------------------------------------------ this process

    @contextmanager
    def inside(self, node: str) -> Iterator[None]:
        """Run this thread, and all processes that it starts, in the namespace of `node`."""
        with open("/proc/thread-self/ns/net") as before:
            with (_FOLDER / (self._prefix + node)).open() as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def remove_leftovers() -> None:
    """Remove the namespaces of campaigns that were killed."""
    _remove(name for name in _namespaces() if name.startswith(_PREFIX) and not _is_owned(name))


def _own_prefix() -> str:
    """The prefix of this process's namespaces: its pid and start time, because the system may reuse the pid."""
    return f"{_PREFIX}{os.getpid()}.{int(psutil.Process().create_time())}-"


def _is_owned(name: str) -> bool:
    """Whether the process that made the namespace `name` is alive."""
    pid, _, began = name.removeprefix(_PREFIX).split("-")[0].partition(".")
    try:
        return int(psutil.Process(int(pid)).create_time()) == int(began)
    except (psutil.NoSuchProcess, ValueError):
        return False


def _namespaces() -> list[str]:
    return sorted(path.name for path in _FOLDER.iterdir()) if _FOLDER.is_dir() else []


def _remove(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(UsageError):
            _ip("netns", "del", name)


def _mac(number: int) -> str:
    return f"02:93:00:00:00:{number:02x}"


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter a network namespace: {os.strerror(error)}")


def _ip(*words: str, text: str = "") -> None:
    """Run ``ip``.

    Raises:
        UsageError: the command failed; the message has its output.
    """
    done = subprocess.run(["ip", *words], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"`ip {' '.join(words)}` failed: {done.stderr.strip() or done.returncode}")
