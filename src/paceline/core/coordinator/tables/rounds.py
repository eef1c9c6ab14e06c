"""Rounds of validation: the slots of one validator on one pinned version, their holders and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.core.coordinator.metric_names import Result, named, names, seen_at, series_of
from paceline.messages import Evaluated, ValidatorSpec
from paceline.types import Fence, Measured, NodeId, Sums

_NEVER = 1 << 62  # a step that no job reaches


@dataclass(slots=True)
class Round:
    """One validation of one version."""

    number: int
    validator: ValidatorSpec
    version: int
    step: int
    queue: list[int]
    results: dict[int, dict[str, Sums]] = field(default_factory=dict)

    @property
    def num_slots(self) -> int:
        """The number of slots of the round."""
        return -(-self.validator.data_len // self.validator.batch_size)

    @property
    def done(self) -> bool:
        """Whether every slot has a result."""
        return len(self.results) == self.num_slots

    def metrics(self) -> dict[str, float]:
        """The mean of each metric over all samples, summed in slot order."""
        sums: dict[str, list[float]] = {}
        for slot in sorted(self.results):
            for name, part in self.results[slot].items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0] += part.total
                entry[1] += part.count
        return {name: total / count if count else float("nan") for name, (total, count) in sums.items()}


@dataclass(frozen=True, slots=True)
class _Held:
    round: int
    slot: int
    worker: NodeId


@dataclass(frozen=True, slots=True)
class _Seen:
    """What turns of the steps from `first` to before `end` see, in a phase that begins at `start`."""

    start: int
    first: int
    end: int
    metrics: dict[str, Measured]


class Rounds:
    """Validators, the rounds that are open, and the newest results. Only `Validation` changes it."""

    def __init__(self, first: int = 0) -> None:
        """Number the rounds after `first`, so that a report on a round of an earlier coordinator matches no round.

        `latest` is the newest result of each validator; `_earlier` are older ones that a turn may still see. `declared`
        is the number of validators that each worker knows. `by_worker` has the fences of the slots that each holds.
        """
        self.validators: list[ValidatorSpec] = []
        self.running: dict[int, Round] = {}
        self.latest: dict[int, tuple[int, dict[str, float]]] = {}
        self._earlier: dict[int, dict[int, dict[str, float]]] = {}
        self.declared: dict[NodeId, int] = {}
        self._number = first
        self._seen: _Seen | None = None
        self._validated: set[tuple[int, int]] = set()
        self._held: dict[Fence, _Held] = {}
        self.by_worker: dict[NodeId, set[Fence]] = {}

    def __contains__(self, fence: object) -> bool:
        """Whether a worker holds a validation slot under that fence."""
        return fence in self._held

    def open(self, validator: ValidatorSpec, version: int, step: int) -> Round | None:
        """Open a round, or return the open one; None if the result is known. Without data the result is empty."""
        known = self.latest.get(validator.number)
        if known is not None and known[0] == version:
            return None
        if validator.data_len == 0:
            self.latest[validator.number] = (version, {})
            return None
        for other in self.running.values():
            if (other.validator.number, other.version) == (validator.number, version):
                return other
        self._number += 1
        round_ = Round(self._number, validator, version, step, [])
        round_.queue = list(range(round_.num_slots))[::-1]
        self.running[self._number] = round_
        return round_

    def due(self, version: int, *, last: bool) -> list[ValidatorSpec]:
        """The periodic validators that are due on `version`: all of them on the `last` version of a phase."""
        return [v for v in self.validators if v.every and v.data_len and version and (last or version % v.every == 0)]

    def grant(self, worker: NodeId, fence: Fence, declared: int) -> tuple[Round, int] | None:
        """Lease the next free slot of the first `declared` validators to `worker`, oldest round first; None if none."""
        for round_ in self.running.values():
            if round_.queue and round_.validator.number < declared:
                slot = round_.queue.pop()
                self._held[fence] = _Held(round_.number, slot, worker)
                self.by_worker.setdefault(worker, set()).add(fence)
                return round_, slot
        return None

    def waiting(self, declared: int) -> bool:
        """Whether a slot of one of the first `declared` validators is free."""
        return any(r.queue and r.validator.number < declared for r in self.running.values())

    def concerns(self, version: int) -> bool:
        """Whether a round on `version` is open."""
        return any(r.version == version for r in self.running.values())

    def report(self, report: Evaluated) -> Round | None:
        """Take the sums of one slot; the first report of a slot counts. Returns the round if this was its last slot."""
        self._release(report.fence)
        round_ = self.running.get(report.round)
        if round_ is None or report.slot in round_.results or not 0 <= report.slot < round_.num_slots:
            return None
        round_.results[report.slot] = dict(report.sums)
        if not round_.done:
            return None
        del self.running[report.round]
        self._note(round_.validator.number, round_.version, round_.metrics())
        return round_

    def held(self) -> list[tuple[NodeId, Fence]]:
        """The holders of slots, each with its fence."""
        return [(held.worker, fence) for fence, held in self._held.items()]

    def revoke(self, worker: NodeId) -> bool:
        """Free the slots that `worker` held: it is gone or has forgotten them. True if there was one."""
        if worker not in self.by_worker:
            return False
        fences = sorted(self.by_worker[worker])
        for fence in fences:
            self.abandon(fence)
        return bool(fences)

    def abandon(self, fence: Fence) -> Round | None:
        """Free the slot with that fence; returns its round if the round is open."""
        held = self._release(fence)
        round_ = None if held is None else self.running.get(held.round)
        if held is not None and round_ is not None and held.slot not in round_.results:
            round_.queue.append(held.slot)
        return round_

    def _release(self, fence: Fence) -> _Held | None:
        held = self._held.pop(fence, None)
        if held is not None:
            fences = self.by_worker[held.worker]
            fences.discard(fence)
            if not fences:
                del self.by_worker[held.worker]
        return held

    def add(self, validator: ValidatorSpec) -> None:
        """Add a validator."""
        self.validators.append(validator)

    def place(self, validator: ValidatorSpec) -> None:
        """Note the series of a validator that is known from a log without it."""
        self.validators[validator.number] = validator

    def declare(self, worker: NodeId, number: int) -> None:
        """Note that `worker` knows the first `number` validators."""
        if number > self.declared.get(worker, 0):
            self.declared[worker] = number

    # ------------------------------------------------------------ results

    def reset(self, results: Iterable[Result], version: int) -> None:
        """Close all rounds. The results are `results`, and those that are known on versions up to `version`."""
        known = [r for r in self.results() if r[1] <= version]
        self.running.clear()
        self._held.clear()
        self.by_worker.clear()
        self._validated.clear()
        self.latest = {}
        self._earlier = {}
        self._seen = None
        for number, on, values in [*results, *known]:
            self._note(number, on, dict(values))

    def recall(self, number: int, version: int, values: Mapping[str, float]) -> None:
        """Take over a result from the log."""
        self._validated.add((number, version))
        self._note(number, version, dict(values))

    def _note(self, number: int, version: int, values: dict[str, float]) -> None:
        self._seen = None
        known = self.latest.get(number)
        if known is None or known[0] < version:  # rounds may end in another order than they began
            self.latest[number] = version, values
        every = self.validators[number].every if number < len(self.validators) else 0
        if known is None or not every:
            return
        earlier = self._earlier.setdefault(number, {})
        for on, found in (known, (version, values)):
            earlier[on] = found
        newest = self.latest[number][0]
        # A turn of step t sees the newest result with `on + every <= t`. All further turns are of step `newest` or
        # later, so no turn sees a result older than `seen` again.
        seen = max((on for on in earlier if on + every <= newest), default=-1)
        for on in [on for on in earlier if on < seen or on == newest]:
            del earlier[on]

    def is_validated(self, number: int, version: int) -> bool:
        """Whether the log had this result when the coordinator started."""
        return (number, version) in self._validated

    def results(self) -> list[Result]:
        """The results that turns may still see, and the newest result of each validator, in the order of versions."""
        found: list[Result] = [(n, version, values) for n, (version, values) in self.latest.items()]
        found += [(n, version, values) for n, older in self._earlier.items() for version, values in older.items()]
        return sorted(found, key=lambda result: result[1])

    def barrier(self) -> int | None:
        """The first step whose turns see the result of a round that is still open; None if there is none."""
        if not self.running:
            return None
        ends = [r.version + r.validator.every for r in self.running.values() if r.validator.every]
        return min(ends, default=None)

    def metrics(self) -> dict[str, Measured]:
        """The newest values of all validators."""
        return named(self.validators, self.results())

    def seen_at(self, step: int, start: int) -> dict[str, Measured]:
        """The metrics that a turn of `step` sees, in a phase whose first step is `start`."""
        if not self.latest:
            return {}
        cached = self._seen
        if cached is None or cached.start != start or not cached.first <= step < cached.end:
            results = self.results()
            later = [end for n, version, _ in results if (end := version + self.validators[n].every) > step]
            seen = seen_at(self.validators, results, step, start)
            cached = self._seen = _Seen(start, step, min(later, default=_NEVER), seen)
        return cached.metrics

    def shown(self, number: int) -> dict[str, Measured]:
        """The newest result of validator `number`, under the names that its metrics have in `metrics`."""
        version, values = self.latest[number]
        shown, series = names(self.validators, self.results()), series_of(self.validators[number])
        return {shown[series, name]: Measured(value, version) for name, value in values.items()}

    def metrics_at(self, end: int, results: Iterable[Result]) -> dict[str, Measured]:
        """The newest of `results` at the time when workers left a phase whose last version is `end`.

        A result of `evaluate` on version `end` does not count: the script asks for it after its loop.
        """
        in_time = (r for r in results if r[1] < end or (r[1] == end and self.validators[r[0]].every > 0))
        return named(self.validators, in_time)
