"""Makes the carrier of a run: who brings its agents."""

from __future__ import annotations

from paceline.engines.carriers.base import Carrier
from paceline.engines.carriers.ray import RayAgents
from paceline.engines.carriers.ray_cluster import RayCluster
from paceline.engines.carriers.spark import SparkAgents
from paceline.engines.carriers.ssh import SshAgents
from paceline.engines.host_options import RAY, SPARK, HostOptions
from paceline.runtime.rundir import RunDir


def make_carrier(options: HostOptions, run: RunDir) -> Carrier:
    """Make the carrier for a run with these options. Without machines for ssh, it brings nobody: the user does.

    Raises:
        UsageError: the engine cannot be reached, or its extra is not installed.
    """
    if options.engine == RAY:
        return RayAgents(RayCluster(options.engine_address))
    if options.engine == SPARK:
        return SparkAgents(options.engine_address, run)
    return SshAgents(options.ssh, run.logs)
