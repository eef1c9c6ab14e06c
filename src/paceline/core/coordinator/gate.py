"""The commit gate: whether every block of a step is ready, and with which attempts. Rules 1 and 2.

Sealing reports come from workers, receipts and readiness from servers, in any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from math import sqrt

from paceline.messages import Ready, Receipt, Sealed
from paceline.types import Fence, Hyper, NodeId

_NONE: frozenset[NodeId] = frozenset()


@dataclass(slots=True)
class _Pending:
    seals: dict[Fence, Sealed] = field(default_factory=dict)
    first: dict[int, Fence] = field(default_factory=dict)
    receipts: dict[tuple[int, Fence], set[NodeId]] = field(default_factory=dict)
    chosen: dict[int, Fence] = field(default_factory=dict)
    ready: dict[tuple[Fence, ...] | None, dict[NodeId, Ready]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passed:
    """A step that may be committed: the attempt that counts for each slot, and the reports of the servers."""

    step: int
    seals: tuple[Sealed, ...]
    ready: tuple[Ready, ...]


class Gate:
    """What is known of steps that are not committed yet. Only `Commits` changes it."""

    def __init__(self) -> None:
        self._steps: dict[int, _Pending] = {}

    def __contains__(self, step: int) -> bool:
        """Whether anything is known of `step`."""
        return step in self._steps

    def __len__(self) -> int:
        """Steps of which something is known."""
        return len(self._steps)

    def sealed(self, report: Sealed) -> None:
        """A worker sealed a slot."""
        pending = self._steps.setdefault(report.step, _Pending())
        pending.seals.setdefault(report.fence, report)
        pending.first.setdefault(report.slot, report.fence)

    def receipt(self, server: NodeId, receipt: Receipt) -> None:
        """A server holds its part of one attempt."""
        pending = self._steps.setdefault(receipt.step, _Pending())
        pending.receipts.setdefault((receipt.slot, receipt.fence), set()).add(server)

    def ready(self, server: NodeId, ready: Ready, *, one_attempt: bool) -> None:
        """A server has what it needs. Interchangeable attempts need not be the same on every server."""
        pending = self._steps.setdefault(ready.step, _Pending())
        pending.ready.setdefault(ready.fences if one_attempt else None, {})[server] = ready

    def choose(self, step: int, slot: int, fence: Fence, servers: Collection[NodeId], valid: Container[Fence]) -> bool:
        """Choose this attempt if it is the first that is sealed, has arrived and is still valid; True if so."""
        pending = self._steps.get(step)
        if pending is None or slot in pending.chosen or fence not in valid or fence not in pending.seals:
            return False
        if not pending.receipts.get((slot, fence), _NONE).issuperset(servers):
            return False
        pending.chosen[slot] = fence
        return True

    def decide(self, report: Sealed) -> None:
        """An earlier coordinator chose this attempt."""
        self.sealed(report)
        self._steps[report.step].chosen[report.slot] = report.fence

    def steps(self) -> list[int]:
        """Steps of which something is known."""
        return sorted(self._steps)

    def choices(self, step: int) -> list[tuple[int, Fence]]:
        """Slots of a step whose attempt is chosen."""
        return sorted(self._steps[step].chosen.items())

    def report(self, step: int, fence: Fence) -> Sealed:
        """The report of a sealed attempt."""
        return self._steps[step].seals[fence]

    def chosen(self, step: int, slot: int) -> Fence | None:
        """The attempt that counts for a slot, once it is chosen."""
        pending = self._steps.get(step)
        return None if pending is None else pending.chosen.get(slot)

    def passed(
        self, step: int, num_slots: int, servers: Collection[NodeId], *, one_attempt: bool, valid: Container[Fence]
    ) -> Passed | None:
        """Whether every server is ready for `step` and every slot that counts was sealed."""
        pending = self._steps.get(step)
        if pending is None:
            return None
        for fences, by_server in pending.ready.items():
            if not by_server.keys() >= set(servers):
                continue
            if not one_attempt:
                if len(pending.first) < num_slots:
                    return None
                fences = tuple(pending.first[i] for i in range(num_slots))
            assert fences is not None
            if one_attempt and num_slots == 1 and fences[0] not in valid:
                continue
            if any(f not in pending.seals for f in fences):
                continue
            ready = tuple(by_server[s] for s in sorted(servers))
            return Passed(step, tuple(pending.seals[f] for f in fences), ready)
        return None

    def clear(self) -> None:
        """Nothing is known: what was reported under another placement or incarnation is void (rules 5 and 6)."""
        self._steps.clear()

    def forget(self, step: int) -> None:
        """The step is committed, or will never be."""
        self._steps.pop(step, None)

    def drop_beyond(self, end_step: int) -> None:
        """Steps from `end_step` on will not be computed after all."""
        for step in [s for s in self._steps if s >= end_step]:
            del self._steps[step]


def disagreement(seals: tuple[Sealed, ...]) -> tuple[int, int, Hyper, Hyper] | None:
    """Two slots of one step whose hyper-parameters differ, with both."""
    for other in seals[1:]:
        if other.hyper != seals[0].hyper:
            return seals[0].slot, other.slot, seals[0].hyper, other.hyper
    return None


def clip_scale(ready: tuple[Ready, ...], clip_norm: float | None) -> float:
    """The factor that brings the step's gradient to `clip_norm`; partial norms combine in block order."""
    if clip_norm is None:
        return 1.0
    partials = sorted(p for r in ready for p in r.partials)
    total = 0.0
    for _, squared in partials:
        total += squared
    return min(1.0, clip_norm / (sqrt(total) + 1e-6))


def mean_logs(seals: tuple[Sealed, ...]) -> dict[str, float]:
    """Weighted mean of what the slots logged, in slot order."""
    sums: dict[str, list[float]] = {}
    for seal in seals:
        weight = seal.weight or 1.0  # an empty slot may still have logged
        for name, value in seal.logs.items():
            entry = sums.setdefault(name, [0.0, 0.0])
            entry[0] += weight * value
            entry[1] += weight
    return {name: total / weight for name, (total, weight) in sums.items()}
