"""Agents on the nodes of a Ray cluster: an actor on each node that the run uses carries one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.core.hosts.node_agents import GiveBack, GiveUp, NodeAgents, StartAgent, StopAgent, Warn
from paceline.engines.carriers.base import CarrierEvent, Wanted, agent_words
from paceline.engines.carriers.ray_cluster import AgentEnded, AgentUp, NodesSeen
from paceline.engines.role_runner import HostLeaves, Note
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.engines.carriers.ray_cluster import RayCluster


class RayAgents:
    """A `Carrier`: `NodeAgents` decides which node carries an agent, and `cluster` starts it there."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._agents = NodeAgents("ray", fixed=cluster.is_local)
        self._address = ""
        self._token = ""
        self._notes: list[CarrierEvent] = []
        if cluster.is_local:
            self._notes.append(Note("there is no Ray cluster: a local one is started, and ends with the run"))

    def own_address(self) -> str:
        """See `Carrier.own_address`."""
        return self._cluster.own_address

    def begin(self, address: str, token: bytes) -> None:
        """See `Carrier.begin`."""
        self._address, self._token = address, token.hex()

    def coming(self, joined: Mapping[str, int]) -> int:
        """See `Carrier.coming`."""
        return self._agents.coming(joined)

    def tick(self, joined: Mapping[str, int], wanted: Wanted) -> list[CarrierEvent]:
        """See `Carrier.tick`.

        Raises:
            UsageError: the cluster cannot carry the run, which has not begun.
        """
        now = time.monotonic()
        for news in self._cluster.news():
            match news:
                case NodesSeen(nodes=nodes):
                    self._agents.see(nodes)
                case AgentUp(name=name):
                    self._agents.up(name, now)
                case AgentEnded(name=name, end=end):
                    self._agents.ended(name, now, end)
        events, self._notes = self._notes, []
        for action in self._agents.tick(now, joined, wanted):
            match action:
                case StartAgent():
                    self._start(action)
                case StopAgent(name=name):
                    self._cluster.stop(name)
                case Warn(text=text):
                    events.append(Note(text, warning=True))
                case GiveBack(host=host):
                    events.append(HostLeaves(host))
                case GiveUp(reason=reason):
                    raise UsageError(reason)
        return events

    def _start(self, action: StartAgent) -> None:
        share = action.share
        # If the user has chosen another network by --listen, the agent finds its address there by itself.
        is_ours = self._address.rpartition(":")[0].strip("[]") == self._cluster.own_address
        own = self._cluster.address_of(share.node) if is_ours else None
        words = agent_words(self._address, action.name, cores=share.cores, own=own)
        self._cluster.start(action.name, share, words, self._token)

    def close(self) -> None:
        """See `Carrier.close`."""
        self._cluster.close()
