"""The interface between the supervisor of a run on several hosts and whoever starts the agents there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from paceline.core.hosts.node_shares import Wanted as Wanted
from paceline.engines.role_runner import HostLeaves, Note

CarrierEvent = Note | HostLeaves
"""A text for the user, or a host that the carrier gives back: the supervisor empties it, and then its agent ends."""


class Carrier(Protocol):
    """Starts agents on hosts, and again when they end. Only the thread of the supervisor calls it."""

    def own_address(self) -> str | None:
        """The IP address of this machine that the hosts can reach; None if only the user knows it (``--listen``)."""
        ...

    def begin(self, address: str, token: bytes) -> None:
        """Take note that the supervisor listens at `address`, which is ADDRESS:PORT, and accepts agents with `token`.

        Raises:
            UsageError: agents cannot be started.
        """
        ...

    def coming(self, joined: Mapping[str, int]) -> int:
        """How many agents are on their way, so that the roles should not be started yet.

        `joined` has the number of roles on each host that takes part.
        """
        ...

    def tick(self, joined: Mapping[str, int], wanted: Wanted) -> Sequence[CarrierEvent]:
        """Start agents that are due, and end those that the run cannot use. Never waits.

        Raises:
            UsageError: no agent can be started, and the run cannot begin.
            ClusterLostError: the cluster has ended the application, with every agent.
        """
        ...

    def close(self) -> None:
        """End every agent that still runs, and leave nothing behind."""
        ...


def agent_words(address: str, name: str, *, cores: int | None = None, own: str | None = None) -> list[str]:
    """The words after ``paceline`` that start the agent of the host `name`; its standard input has the token in hex.

    The host offers `cores` cores, and other hosts reach it at the IP address `own`.
    """
    words = ["agent", address, "--token-file", "-", "--name", name]
    words += [] if cores is None else ["--cores", str(cores)]
    return words + ([] if own is None else ["--address", own])
