"""Validation as leased work: rounds of slots pinned to one version."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.messages import Evaluated, ValidatorSpec
from paceline.types import Fence, NodeId, Sums


@dataclass(slots=True)
class Round:
    """One validation of one version."""

    number: int
    validator: ValidatorSpec
    version: int
    step: int
    queue: list[int]
    holders: dict[Fence, tuple[int, NodeId]] = field(default_factory=dict)
    results: dict[int, dict[str, Sums]] = field(default_factory=dict)

    @property
    def num_slots(self) -> int:
        """Slots of the round."""
        return -(-self.validator.data_len // self.validator.batch_size)

    @property
    def done(self) -> bool:
        """Whether every slot has a result."""
        return len(self.results) == self.num_slots

    def metrics(self) -> dict[str, float]:
        """Means over all samples, summed in slot order."""
        sums: dict[str, list[float]] = {}
        for slot in sorted(self.results):
            for name, part in self.results[slot].items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0] += part.total
                entry[1] += part.count
        return {name: total / count if count else float("nan") for name, (total, count) in sums.items()}


class EvaluationBook:
    """Open rounds and the newest results."""

    def __init__(self) -> None:
        self.validators: list[ValidatorSpec] = []
        self.rounds: dict[int, Round] = {}
        self.latest: dict[int, tuple[int, dict[str, float]]] = {}
        self._number = 0

    def open(self, validator: ValidatorSpec, version: int, step: int) -> Round | None:
        """Begin a round; None for a validator without data or one whose result for that version is known."""
        known = self.latest.get(validator.number)
        if validator.data_len == 0 or (known is not None and known[0] == version):
            return None
        for other in self.rounds.values():
            if (other.validator.number, other.version) == (validator.number, version):
                return other
        self._number += 1
        round_ = Round(self._number, validator, version, step, [])
        round_.queue = list(range(round_.num_slots))[::-1]
        self.rounds[self._number] = round_
        return round_

    def due(self, version: int, *, last: bool) -> list[ValidatorSpec]:
        """Validators to run on `version`; at the end of a phase each of them is."""
        return [v for v in self.validators if v.every and version and (last or version % v.every == 0)]

    def grant(self, worker: NodeId, fence: Fence) -> tuple[Round, int] | None:
        """The next free validation slot, oldest round first. `fence` is used up only if one is granted."""
        for round_ in self.rounds.values():
            if round_.queue:
                slot = round_.queue.pop()
                round_.holders[fence] = (slot, worker)
                return round_, slot
        return None

    def waiting(self) -> bool:
        """Whether a slot is free."""
        return any(r.queue for r in self.rounds.values())

    def report(self, report: Evaluated) -> Round | None:
        """One slot's sums; the first report of a slot counts. Returns the round if that ended it."""
        round_ = self.rounds.get(report.round)
        if round_ is None:
            return None
        round_.holders.pop(report.fence, None)
        if report.slot in round_.results or not 0 <= report.slot < round_.num_slots:
            return None
        round_.results[report.slot] = dict(report.sums)
        if not round_.done:
            return None
        del self.rounds[report.round]
        self.latest[round_.validator.number] = (round_.version, round_.metrics())
        return round_

    def revoke(self, worker: NodeId) -> None:
        """`worker` is gone: its slots are free again."""
        for round_ in self.rounds.values():
            for fence, (slot, holder) in list(round_.holders.items()):
                if holder == worker:
                    del round_.holders[fence]
                    if slot not in round_.results:
                        round_.queue.append(slot)

    def abandon(self, fence: Fence) -> None:
        """The holder gives a slot back."""
        for round_ in self.rounds.values():
            held = round_.holders.pop(fence, None)
            if held is not None and held[0] not in round_.results:
                round_.queue.append(held[0])

    def metrics(self) -> dict[str, float]:
        """The newest values of all validators."""
        return {name: value for _, values in self.latest.values() for name, value in values.items()}
