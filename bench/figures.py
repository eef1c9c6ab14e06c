"""Figures computed from measurements: pure functions, so that tests define what a figure means.

A looping process writes *marks*: one (step, seconds) for each start of its loop body. All processes use the monotonic
clock of the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Marks = Sequence[tuple[int, float]]


class TooShortError(ValueError):
    """There are too few marks: the run was too short for its warm-up."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a figure over the rounds, with its smallest and largest value."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of `values`; None if no round was measured."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values), len(values))


def ratio(top: Sequence[float], bottom: Sequence[float]) -> float | None:
    """The median of `top` divided by the median of `bottom`; None if one of them was not measured."""
    if not top or not bottom:
        return None
    return statistics.median(top) / statistics.median(bottom)


def _warm(processes: Iterable[Marks], warmup: int) -> float:
    """The time at which the last process finished its warm-up."""
    begins = []
    for number, marks in enumerate(processes):
        if len(marks) <= warmup:
            raise TooShortError(f"process {number} had only {len(marks)} turns, and the first {warmup} are its warm-up")
        begins.append(marks[warmup][1])
    return max(begins)


def _first_seen(processes: Iterable[Marks]) -> list[tuple[int, float]]:
    """The time at which any process first reached each step. Steps are in order, times never decrease."""
    first: dict[int, float] = {}
    for marks in processes:
        for step, at in marks:
            first[step] = min(at, first.get(step, at))
    latest = float("-inf")
    seen = []
    for step in sorted(first):
        latest = max(latest, first[step])
        seen.append((step, latest))
    return seen


def step_times(processes: Sequence[Marks], warmup: int) -> list[float]:
    """The seconds that each step took which all processes make together, after `warmup` turns of each process."""
    begin = _warm(processes, warmup)
    seen = [(step, at) for step, at in _first_seen(processes) if at >= begin]
    times = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(seen)]
    if not times:
        raise TooShortError(f"no whole step after a warm-up of {warmup} turns")
    return times


def joint_rate(processes: Sequence[Marks], warmup: int, samples_per_step: int) -> float:
    """Samples per second of processes that make each step together. Only completed steps count."""
    begin = _warm(processes, warmup)
    seen = [(step, at) for step, at in _first_seen(processes) if at >= begin]
    if len(seen) < 2:
        raise TooShortError(f"no whole step after a warm-up of {warmup} turns")
    (first, began), (last, ended) = seen[0], seen[-1]
    return (last - first) * samples_per_step / (ended - began)


def separate_rates(processes: Sequence[Marks], warmup: int, samples_per_turn: int) -> list[float]:
    """Samples per second of each of several independent processes, while all of them run."""
    begin = _warm(processes, warmup)
    end = min(marks[-1][1] for marks in processes)
    rates = []
    for marks in processes:
        inside = [at for _, at in marks if begin <= at <= end]
        if len(inside) < 2:
            raise TooShortError("the processes did not run at the same time")
        rates.append((len(inside) - 1) * samples_per_turn / (inside[-1] - inside[0]))
    return rates


def memory_limit_s(copy_s: float, num_workers: int, num_cores: int) -> float:
    """The least time in which memory can synchronise a model that takes `copy_s` to copy on one thread.

    Each worker copies its gradient out and the weights in. The server reads each gradient once, and reads and writes
    weights and momentum: num_workers + 4 memory accesses per byte, where a copy makes 2. The work is spread evenly over
    the cores. Each core has the speed of a core that uses the memory alone.
    """
    copies = 2 * num_workers + (num_workers + 4) / 2
    return copies * copy_s / num_cores


def push_pull_gb_per_s(nbytes: int, step_s: float) -> float:
    """Bytes of gradients out and weights back over the time of a step, in GB (10^9 bytes) per second."""
    return 2 * nbytes / step_s / 1e9


def difference(whole: Sequence[float], part: Sequence[float]) -> float | None:
    """The median of `whole` minus the median of `part`; None if one of them was not measured."""
    if not whole or not part:
        return None
    return statistics.median(whole) - statistics.median(part)


def growth(samples: Sequence[Mapping[str, float]], key: str) -> float:
    """Growth of `key`: the median of the last third of the samples minus the median of the first third.

    One sample may include a short-lived buffer, so thirds are compared.
    """
    values = [sample[key] for sample in samples]
    if len(values) < 3:
        raise TooShortError(f"growth needs at least 3 samples, not {len(values)}: raise --steps")
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) - statistics.median(values[:third])
