"""Chooses the nodes of a cluster that carry a run, and the cores to reserve on each. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster. It has `cores` cores in all; nobody has reserved `free` of them."""

    name: str
    cores: int
    free: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the run would use: so many `roles` with a core each, on at least `hosts` hosts.

    With `unlimited`, it has a use for every further host (``-w auto``, ``-s per-host``). With `has_begun`, its first
    roles were started.
    """

    roles: int
    hosts: int
    unlimited: bool = False
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a node that carries roles: its agent offers `cores` cores, of which the run reserves `reserved`."""

    node: str
    cores: int
    reserved: int


def further_shares(nodes: Sequence[Node], used: Sequence[int], wanted: Wanted) -> list[Share]:
    """Choose further nodes for a run that already uses `used` cores on as many nodes. A node is chosen only once.

    The fewest nodes that have enough free cores are chosen, and the roles are spread evenly over them. Nodes without a
    free core are chosen only to reach the number of hosts: their roles share the cores with others.
    """
    roomy = sorted((node for node in nodes if node.free > 0), key=lambda node: (-node.free, node.name))
    missing_hosts = wanted.hosts - len(used)
    missing_cores = wanted.roles - sum(used)
    if wanted.unlimited:
        shares = [Share(node.name, node.free, node.free) for node in roomy]
    else:
        chosen: list[Node] = []
        for node in roomy:
            if len(chosen) >= missing_hosts and sum(each.free for each in chosen) >= missing_cores:
                break
            chosen.append(node)
        shares = _even_shares(chosen, missing_cores)
    full = sorted((node for node in nodes if node.cores > 0 and node.free <= 0), key=lambda node: node.name)
    return shares + [Share(node.name, 1, 0) for node in full[: max(0, missing_hosts - len(shares))]]


def _even_shares(nodes: Sequence[Node], cores: int) -> list[Share]:
    """Spread `cores` evenly over `nodes`, at least one to each, and to none more than it has free."""
    given = dict.fromkeys((node.name for node in nodes), 1)
    for _ in range(cores - len(nodes)):
        open_nodes = [node for node in nodes if given[node.name] < node.free]
        if not open_nodes:
            break
        given[min(open_nodes, key=lambda node: given[node.name]).name] += 1
    return [Share(name, share, share) for name, share in given.items()]


def surplus_host(cores: Mapping[str, int], roles: Mapping[str, int], wanted: Wanted) -> str | None:
    """Return the host that the run does not need, None if it needs all. `cores` are what each host offers.

    `roles` is the number of roles on each; the host with the fewest roles is given back.
    """
    if wanted.unlimited or len(cores) <= wanted.hosts:
        return None
    total = sum(cores.values())
    spare = [host for host, own in cores.items() if total - own >= wanted.roles]
    return min(spare, key=lambda host: (roles.get(host, 0), host), default=None)
