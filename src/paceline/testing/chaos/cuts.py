"""Who is cut off from whom, which way and for how long: plain data out of a fault's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

Way = tuple[str, str]
"""From a node to another one: what is sent that way."""

SYMMETRIC, ONE_WAY, FLAPPING = "symmetric", "one-way", "flapping"
KINDS = (SYMMETRIC, ONE_WAY, FLAPPING)

COORDINATOR = "coordinator"
_MIN_S, _MAX_S = 1.0, 9.0  # of a cut: some are over before anybody is missed, others are noticed by everyone
_FLAP_S = 0.4  # a flapping connection is closed for that long, then open for as long
_WORKERS = 0.2  # share of the cuts that hit a worker


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut: `victim` and each of `others` are apart, in the `ways` that are closed, for `lasts_s`."""

    kind: str
    victim: str
    others: tuple[str, ...]
    ways: frozenset[Way]
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} cut between {self.victim} and {', '.join(self.others)} for {self.lasts_s:.1f} s"

    @property
    def phases(self) -> list[tuple[float, frozenset[Way]]]:
        """What is closed for how long, one after the other."""
        if self.kind != FLAPPING:
            return [(self.lasts_s, self.ways)]
        times = max(1, round(self.lasts_s / (2 * _FLAP_S)))
        return [(_FLAP_S, self.ways), (_FLAP_S, frozenset())] * times


def choose(kind: str, draw: float, span: float, servers: Sequence[str], workers: Sequence[str]) -> Cut:
    """The cut that `draw` and `span`, between 0 and 1, stand for, among these processes.

    A server is cut off from everyone, from the coordinator, from the other servers, from one of them, or from the
    workers; a worker from everyone, from the coordinator, or from one server. What goes only one way goes to or from
    the victim.
    """
    hits_worker = bool(workers) and draw < _WORKERS
    if hits_worker:
        draw /= _WORKERS
        victim, draw = _pick(workers, draw)
        groups = [(COORDINATOR, *servers), (COORDINATOR,), (servers[int(span * len(servers))],)]
    else:
        draw = (draw - _WORKERS) / (1 - _WORKERS) if workers else draw
        victim, draw = _pick(servers, draw)
        others = tuple(name for name in servers if name != victim)
        groups = [(COORDINATOR, *others, *workers), (COORDINATOR,), tuple(workers)]
        groups += [others, others[:1]] if others else []
    others, draw = _pick([group for group in groups if group], draw)
    out, back = {(victim, other) for other in others}, {(other, victim) for other in others}
    ways = out | back if kind != ONE_WAY else out if draw < 0.5 else back
    return Cut(kind, victim, others, frozenset(ways), _MIN_S + span * (_MAX_S - _MIN_S))


def _pick(choices: Sequence[T], draw: float) -> tuple[T, float]:
    """One of `choices`, and a number for the next choice."""
    scaled = draw * len(choices)
    index = min(int(scaled), len(choices) - 1)
    return choices[index], scaled - index
