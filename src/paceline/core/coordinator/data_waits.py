"""How long workers wait for their batches. When the input limits the run, the user is told so, once."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, SlotSealed, WarningFound, WorkersGone
from paceline.core.coordinator.samplers import SamplerTable
from paceline.core.effects import History
from paceline.messages import Position
from paceline.types import NodeId

TOPIC = "input"
_PERIOD_S = 1.0
_FADES = 0.9  # what a period counts after the next one
_LEAST_S = 10.0  # seconds of work after which the share can be judged
_LIMITS = 0.3  # a larger share of the time in waits limits the run


class DataWaits:
    """Owns the waits of workers. All workers together have waited `waited_s`, and computed `computed_s`.

    `shares` has the share of their time that workers have waited lately, `share` that of all of them.
    """

    def __init__(self, tables: Tables, samplers: SamplerTable) -> None:
        self.waited_s = 0.0
        self.computed_s = 0.0
        self.share = 0.0
        self.shares: dict[NodeId, float] = {}
        self._clock = tables.clock
        self._samplers = samplers
        self._new: dict[NodeId, list[float]] = {}  # waited and computed since the last period
        self._lately: dict[NodeId, tuple[float, float]] = {}
        self._due = 0.0
        self._told = False

    def restore(self, history: History) -> list[Output]:
        """Do nothing: the waits of earlier coordinators are not counted."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Keep the waits: what is computed again is waited for again."""
        return []

    def sealed(self, event: SlotSealed) -> list[Output]:
        """Note how long a worker waited for the batch of a slot that it has sealed."""
        report = event.report
        if report.waited:
            sums = self._new.get(event.worker)
            if sums is None:
                sums = self._new[event.worker] = [0.0, 0.0]
            sums[0] += report.waited
            sums[1] += report.seconds
        return []

    def tick(self) -> list[Output]:
        """Sum up the last period. Warn if the input limits the run."""
        if self._clock.now < self._due or not self._new:
            return []
        self._due = self._clock.now + _PERIOD_S
        for worker, (waited, computed) in self._new.items():
            before = self._lately.get(worker, (0.0, 0.0))
            self._lately[worker] = _FADES * before[0] + waited, _FADES * before[1] + computed
            self.waited_s += waited
            self.computed_s += computed
        self._new.clear()
        self.shares = {worker: _share(*sums) for worker, sums in self._lately.items()}
        self.share = _share(*(sum(column) for column in zip(*self._lately.values(), strict=True)))
        if self._told or self.waited_s + self.computed_s < _LEAST_S or self.share <= _LIMITS:
            return []
        self._told = True
        return [WarningFound(TOPIC, _text(self.share, len(self._samplers.known)))]

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Forget the shares of workers that are gone."""
        for worker in event.workers:
            self._lately.pop(worker, None)
            self.shares.pop(worker, None)
        return []


def _share(waited: float, computed: float) -> float:
    return waited / (waited + computed) if waited + computed else 0.0


def _text(share: float, samplers: int) -> str:
    number = max(2, 2 * samplers)
    return (
        f"the input limits this run: workers wait {share:.0%} of their time for data. "
        f"`paceline run --samplers {number}` (now: `paceline scale RUN --samplers {number}`) lets {number} samplers "
        "prepare it; loader_workers=N of job.batches gives each process that prepares it N helpers"
    )
