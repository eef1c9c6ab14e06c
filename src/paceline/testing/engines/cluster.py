"""The interface between a campaign and a cluster whose nodes it kills and adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class EngineCluster(Protocol):
    """A cluster on this machine, whose nodes are processes."""

    def start(self, nodes: int) -> list[str]:
        """Start the cluster with so many nodes; returns the options of ``paceline run`` that use it."""
        ...

    def nodes(self) -> Sequence[str]:
        """The names of the nodes that can carry roles."""
        ...

    def kill(self, node: str) -> None:
        """Kill all processes of a node at once, as a loss of power does."""
        ...

    def add(self) -> str:
        """Add a node; returns its name."""
        ...

    def close(self) -> None:
        """End the cluster, and leave nothing behind."""
        ...
