"""The hosts of a scenario: which process is on which, and what its machine is."""

from __future__ import annotations

from paceline.sim.scenario import Scenario
from paceline.types import NodeId


def host_of(scenario: Scenario, number: int) -> str:
    """The host of the worker or server with that number."""
    return "here" if scenario.hosts < 2 else f"host-{number % scenario.hosts}"


def number_of(node: NodeId) -> int:
    """The number in the name of a process."""
    return int(node.partition("/")[0].rpartition("-")[2])


def fingerprint_of(scenario: Scenario, host: str) -> str:
    """The fingerprint of workers on `host`."""
    return f"machine of {host}" if scenario.unequal else ""
