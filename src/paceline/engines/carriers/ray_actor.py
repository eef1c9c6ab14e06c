"""The actor that carries an agent on a node of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.engines.carriers.carried_agent import CarriedAgent

SET_BY_RAY = (
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "PYTHONBREAKPOINT",
)
"""Variables that Ray sets in a process after its start, by what the actor has reserved."""


class AgentActor:
    """Starts the agent of its node. The actor's end is the agent's."""

    def __init__(self, words: list[str], token: str) -> None:
        self._agent = CarriedAgent(words, token, agent_environment(os.environ, _first_environment()))

    def begun(self) -> None:
        """Answer when the agent's process has been started."""

    def ended(self) -> tuple[int, str]:
        """Wait until the agent has ended; returns its exit code and its last lines."""
        found = self._agent.wait()
        assert found is not None
        return found


def agent_environment(now: Mapping[str, str], first: Mapping[str, str]) -> dict[str, str]:
    """The environment `now`, in which the variables that Ray sets have the values that they had `first`."""
    kept = {name: value for name, value in now.items() if name not in SET_BY_RAY}
    return kept | {name: first[name] for name in SET_BY_RAY if name in first}


def _first_environment() -> dict[str, str]:
    """The environment with which this process was started."""
    try:
        found = Path("/proc/self/environ").read_bytes()
    except OSError:
        return {}
    pairs = [os.fsdecode(entry).partition("=") for entry in found.split(b"\0") if b"=" in entry]
    return {name: value for name, _, value in pairs}
