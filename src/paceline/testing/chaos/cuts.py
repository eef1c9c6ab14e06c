"""Cuts of the network as plain data: the victim, its peers, the direction and the length, derived from a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.testing.network import Way

T = TypeVar("T")

SYMMETRIC, ONE_WAY, FLAPPING = "symmetric", "one-way", "flapping"
KINDS = (SYMMETRIC, ONE_WAY, FLAPPING)

COORDINATOR = "coordinator"
_MIN_S, _MAX_S = 1.0, 9.0  # the length of a cut in seconds: some end before a peer is evicted, others do not
_FLAP_S = 0.4  # a flapping cut closes the network for this many seconds, then opens it for as long, and so on
_WORKERS = 0.2  # this share of the cuts hits a worker; all others hit a server


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut: the network between `victim` and each of `others` is closed in the directions `ways` for `lasts_s`."""

    kind: str
    victim: str
    others: tuple[str, ...]
    ways: frozenset[Way]
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} cut between {self.victim} and {', '.join(self.others)} for {self.lasts_s:.1f} s"

    @property
    def phases(self) -> list[tuple[float, frozenset[Way]]]:
        """The parts of the cut, one after the other, as (seconds, closed ways)."""
        if self.kind != FLAPPING:
            return [(self.lasts_s, self.ways)]
        times = max(1, round(self.lasts_s / (2 * _FLAP_S)))
        return [(_FLAP_S, self.ways), (_FLAP_S, frozenset())] * times


def choose(kind: str, draw: float, span: float, servers: Sequence[str], workers: Sequence[str]) -> Cut:
    """Choose a cut among these processes. `draw` and `span`, between 0 and 1, select the victim and the length.

    A server is cut off from all processes, from the coordinator, from the other servers, from one server, or from the
    workers; a worker is cut off from all processes, from the coordinator, or from one server. A one-way cut closes
    either the way to the victim or the way from the victim.
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
    """Choose one of `choices` by `draw`; returns the choice, and a number between 0 and 1 for the next choice."""
    scaled = draw * len(choices)
    index = min(int(scaled), len(choices) - 1)
    return choices[index], scaled - index
