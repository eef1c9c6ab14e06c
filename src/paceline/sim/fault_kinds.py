"""The kinds of faults of simulated jobs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `lasts_s` is its length in seconds, for kinds of faults that have a length."""

    at_s: float
    kind: str
    lasts_s: float = 0.0


FAULTS = (
    "kill",
    "pause",
    "pause",
    "hang",
    "cut",
    "disconnect",
    "join",
    "leave",
    "pause-coordinator",
    "pause-server",
    "kill-coordinator",
    "kill-coordinator",
    "kill-server",
    "kill-server",
    "power-cut",
    "damage",
    "ghost",
    "save",
)
SERVER_FAULTS = ("kill-server", "kill-server", "pause-server", "cut-server", "cut-servers", "cut-servers", "scale")
"""Additional faults for jobs whose blocks have copies."""

HOST_FAULTS = ("lose-host", "lose-host", "cut-host", "cut-host", "drain-host", "slow-host")
"""Additional faults for jobs on several hosts."""

GROUP_FAULTS = ("kill", "kill", "pause", "hang", "cut", "disconnect", "join", "leave", "kill-coordinator")
"""Additional faults for jobs whose workers hold the blocks."""


def draw_fault(rng: Random, kinds: tuple[str, ...] = FAULTS) -> Fault:
    """A fault of one of `kinds`; its time is a fraction of the length of the job."""
    kind = rng.choice(kinds)
    lasts = {"pause": rng.choice((0.5, 3.0, 9.0)), "cut": rng.choice((0.5, 3.0, 8.0))}
    lasts |= {"cut-server": rng.choice((0.5, 3.0, 8.0)), "cut-servers": rng.choice((0.5, 3.0, 8.0, 20.0))}
    if kind in HOST_FAULTS:
        lasts |= {kind: rng.choice((0.5, 3.0, 8.0, 20.0))}
    lasts |= {"pause-coordinator": rng.choice((0.3, 6.0)), "pause-server": rng.choice((0.1, 1.5, 6.0))}
    return Fault(at_s=rng.random(), kind=kind, lasts_s=lasts.get(kind, 0.0))
