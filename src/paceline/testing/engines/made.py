"""Makes the cluster of a campaign."""

from __future__ import annotations

from collections.abc import Callable

from paceline.testing.engines.cluster import EngineCluster
from paceline.testing.engines.ray_nodes import RayNodes
from paceline.testing.engines.spark_nodes import SparkNodes


def make_cluster(engine: str) -> EngineCluster:
    """Make a cluster of `engine` on this machine; it is not started yet."""
    made: dict[str, Callable[[], EngineCluster]] = {"ray": RayNodes, "spark": SparkNodes}
    return made[engine]()
