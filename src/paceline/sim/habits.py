"""The random behaviour of the processes of a simulated job."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The random behaviour of workers and servers, as probabilities; those of workers are per turn."""

    provisional: float = 0.7  # push blocks before the seal
    push_again: float = 0.2  # a pushed gradient changes and is pushed with the next rev
    hand_back: float = 0.0  # abandon the turn after a partial push
    vanish: float = 0.0  # die after a partial push
    cut_off: float = 0.0  # the coordinator loses its session with the worker just after the seal
    empty: float = 0.0  # seal with weight 0
    partly_absent: float = 0.1  # no gradient for some block
    disk_full: float = 0.0  # a shard or the marker of a checkpoint cannot be written
    mangled: float = 0.0  # a push names a base version that does not exist, so the server refuses it
    mean_turn_s: float = 0.08


def make_habits(rng: Random, mean_turn_s: float, *, calm: bool) -> Habits:
    """Draw habits; `calm` ones have no misbehaviour."""
    if calm:
        return Habits(mean_turn_s=mean_turn_s)
    return Habits(
        provisional=rng.choice((0.0, 0.5, 1.0)),
        push_again=rng.choice((0.0, 0.3)),
        hand_back=rng.choice((0.0, 0.0, 0.1)),
        vanish=rng.choice((0.0, 0.0, 0.08)),
        cut_off=rng.choice((0.0, 0.0, 0.3)),
        empty=rng.choice((0.0, 0.0, 0.3)),
        partly_absent=rng.choice((0.0, 0.3)),
        disk_full=rng.choice((0.0, 0.3, 0.5)),
        mangled=rng.choice((0.0, 0.0, 0.1)),
        mean_turn_s=mean_turn_s,
    )
