"""The commit gate: whether every block of a step is ready, and with which attempts. Rules 1 and 2.

Sealing reports come from workers, receipts and readiness from servers, in any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from paceline.messages import NOT_FINITE, Ready, Receipt, Sealed
from paceline.types import Fence, Hyper, NodeId

_NONE: frozenset[NodeId] = frozenset()


class _Pending:
    """The reports on one step."""

    __slots__ = ("chosen", "first", "ready", "receipts", "seals")

    def __init__(self) -> None:
        self.seals: dict[Fence, Sealed] = {}
        self.first: dict[int, Fence] = {}
        self.receipts: dict[tuple[int, Fence], set[NodeId]] = {}
        self.chosen: dict[int, Fence] = {}
        self.ready: dict[tuple[Fence, ...] | None, dict[NodeId, Ready]] = {}


class Passed(NamedTuple):
    """A step that may be committed: the attempt that counts for each slot, and the reports of the servers."""

    step: int
    fences: tuple[Fence, ...]
    seals: tuple[Sealed, ...]
    ready: tuple[Ready, ...]


class Gate:
    """The reports on steps that are not committed yet. Only `Commits` changes it."""

    def __init__(self) -> None:
        self._steps: dict[int, _Pending] = {}

    def __contains__(self, step: int) -> bool:
        """Whether there is a report on `step`."""
        return step in self._steps

    def __len__(self) -> int:
        """The number of steps with reports."""
        return len(self._steps)

    def sealed(self, report: Sealed) -> bool:
        """Note the report of a worker that sealed a slot; False if no server has reported on the step yet."""
        pending = self._steps.get(report.step) or self._begin(report.step)
        pending.seals.setdefault(report.fence, report)
        pending.first.setdefault(report.slot, report.fence)
        return bool(pending.ready or pending.receipts)

    def unready(self, step: int, servers: Sequence[NodeId]) -> list[NodeId]:
        """The `servers` that have not reported that they are ready for `step`."""
        pending = self._steps.get(step)
        ready = set() if pending is None else {server for by_server in pending.ready.values() for server in by_server}
        return [server for server in servers if server not in ready]

    def has_sealed(self, step: int, slot: int) -> bool:
        """Whether there is a report that the slot was sealed."""
        pending = self._steps.get(step)
        return pending is not None and slot in pending.first

    def receipt(self, server: NodeId, receipt: Receipt) -> None:
        """Note that a server holds its part of one attempt."""
        pending = self._steps.get(receipt.step) or self._begin(receipt.step)
        pending.receipts.setdefault((receipt.slot, receipt.fence), set()).add(server)

    def ready(self, server: NodeId, ready: Ready, *, one_attempt: bool) -> None:
        """Note that a server has all slots of a step. With `one_attempt`, all servers must use the same attempts."""
        pending = self._steps.get(ready.step) or self._begin(ready.step)
        pending.ready.setdefault(ready.fences if one_attempt else None, {})[server] = ready

    def _begin(self, step: int) -> _Pending:
        pending = self._steps[step] = _Pending()
        return pending

    def choose(self, step: int, slot: int, fence: Fence, servers: Collection[NodeId], valid: Container[Fence]) -> bool:
        """Choose this attempt for the slot if none is chosen, all `servers` hold it, and it is sealed and valid.

        Returns whether it was chosen.
        """
        pending = self._steps.get(step)
        if pending is None or slot in pending.chosen or fence not in valid or fence not in pending.seals:
            return False
        if not pending.receipts.get((slot, fence), _NONE).issuperset(servers):
            return False
        pending.chosen[slot] = fence
        return True

    def decide(self, report: Sealed) -> None:
        """Take over the choice of an earlier coordinator."""
        self.sealed(report)
        self._steps[report.step].chosen[report.slot] = report.fence

    def steps(self) -> list[int]:
        """The steps with reports, in order."""
        return sorted(self._steps)

    def choices(self, step: int) -> list[tuple[int, Fence]]:
        """The slots of a step whose attempt is chosen, each with the fence of that attempt."""
        return sorted(self._steps[step].chosen.items())

    def report(self, step: int, fence: Fence) -> Sealed:
        """The report of a sealed attempt."""
        return self._steps[step].seals[fence]

    def chosen(self, step: int, slot: int) -> Fence | None:
        """The fence of the attempt that was chosen for a slot; None if none was."""
        pending = self._steps.get(step)
        return None if pending is None else pending.chosen.get(slot)

    def passed(
        self, step: int, num_slots: int, servers: Collection[NodeId], *, one_attempt: bool, valid: Container[Fence]
    ) -> Passed | None:
        """The seals and reports of `step` if all `servers` are ready and every slot is sealed; None otherwise."""
        pending = self._steps.get(step)
        if pending is None or not pending.ready or len(pending.first) < num_slots:
            return None  # an attempt without its seal does not count: every slot needs one
        seals = pending.seals
        for fences, by_server in pending.ready.items():
            if len(by_server) < len(servers) or not by_server.keys() >= set(servers):
                continue
            if not one_attempt:
                fences = tuple([pending.first[i] for i in range(num_slots)])
            assert fences is not None
            if one_attempt and num_slots == 1 and fences[0] not in valid:
                continue
            if seals.keys() >= set(fences):
                ready = tuple([by_server[s] for s in sorted(servers)])
                return Passed(step, fences, tuple([seals[f] for f in fences]), ready)
        return None

    def clear(self) -> None:
        """Forget all reports: those under another placement or incarnation are void (rules 5 and 6)."""
        self._steps.clear()

    def forget(self, step: int) -> None:
        """Forget the reports on a step that is committed or will never be."""
        self._steps.pop(step, None)

    def drop_beyond(self, end_step: int) -> None:
        """Forget the reports on steps from `end_step` on, which will not be computed."""
        for step in [s for s in self._steps if s >= end_step]:
            del self._steps[step]


def disagreement(seals: tuple[Sealed, ...]) -> tuple[int, int, Hyper, Hyper] | None:
    """Two slots of one step whose hyper-parameters differ, and the hyper-parameters of both; None if all agree."""
    for other in seals[1:]:
        if other.hyper != seals[0].hyper:
            return seals[0].slot, other.slot, seals[0].hyper, other.hyper
    return None


def clip_scale(ready: tuple[Ready, ...], clip_norm: float | None) -> float:
    """The factor that scales the gradient of a step down to `clip_norm`; partial norms are added in block order."""
    if clip_norm is None:
        return 1.0
    partials = sorted(p for r in ready for p in r.partials)
    total = 0.0
    for _, squared in partials:
        total += squared
    return min(1.0, clip_norm / (sqrt(total) + 1e-6))


def mean_logs(seals: tuple[Sealed, ...]) -> dict[str, float]:
    """The weighted mean of each value that the slots logged, added in slot order."""
    sums: dict[str, list[float]] = {}
    for seal in seals:
        if not seal.logs:
            continue
        weight = seal.weight or 1.0  # an empty slot may still have logged
        for name, value in seal.logs.items():
            entry = sums.setdefault(name, [0.0, 0.0])
            entry[0] += weight * value
            entry[1] += weight
    return {name: total / weight for name, (total, weight) in sums.items()}


def not_finite(seals: tuple[Sealed, ...]) -> tuple[int, ...]:
    """The slots in which a worker found numbers that are not finite: in gradients or in logged values."""
    return tuple(s.slot for s in seals if NOT_FINITE in s.warnings or not all(map(isfinite, s.logs.values())))
