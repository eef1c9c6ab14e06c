"""How long workers wait for their batches. When the input limits the run, the user is told so, once."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, SlotSealed, WarningFound, WorkersGone
from paceline.core.coordinator.samplers import SamplerTable
from paceline.core.effects import History
from paceline.messages import Position
from paceline.types import NodeId

TOPIC = "input"
_FADES = 0.97  # what a slot counts after the next one
_LEAST_S = 10.0  # seconds of work after which the share can be judged
_LIMITS = 0.3  # a larger share of the time in waits limits the run


@dataclass(slots=True)
class _Lately:
    """The seconds that were waited and computed lately: each slot counts less than the one after it."""

    waited: float = 0.0
    computed: float = 0.0

    def add(self, waited: float, computed: float) -> None:
        """Add a slot."""
        self.waited = _FADES * self.waited + waited
        self.computed = _FADES * self.computed + computed

    @property
    def share(self) -> float:
        """The share of the waits."""
        both = self.waited + self.computed
        return self.waited / both if both else 0.0


class DataWaits:
    """Owns the waits of workers. All workers together have waited `waited_s`, and computed `computed_s`."""

    def __init__(self, tables: Tables, samplers: SamplerTable) -> None:
        self.waited_s = 0.0
        self.computed_s = 0.0
        self._samplers = samplers
        self._all = _Lately()
        self._lately: dict[NodeId, _Lately] = {}
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
        if report.step < 0 or not event.worker:
            return []
        self.waited_s += report.waited
        self.computed_s += report.seconds
        self._all.add(report.waited, report.seconds)
        self._lately.setdefault(event.worker, _Lately()).add(report.waited, report.seconds)
        if self._told or self.waited_s + self.computed_s < _LEAST_S or self._all.share <= _LIMITS:
            return []
        self._told = True
        return [WarningFound(TOPIC, _text(self._all.share, len(self._samplers.known)))]

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Forget the waits of workers that are gone."""
        for worker in event.workers:
            self._lately.pop(worker, None)
        return []

    @property
    def share(self) -> float:
        """The share of their time that workers have waited for data lately."""
        return self._all.share

    def share_of(self, worker: NodeId) -> float:
        """That share of one worker."""
        lately = self._lately.get(worker)
        return 0.0 if lately is None else lately.share


def _text(share: float, samplers: int) -> str:
    number = max(2, 2 * samplers)
    return (
        f"the input limits this run: workers wait {share:.0%} of their time for data. "
        f"`paceline run --samplers {number}` (now: `paceline scale RUN --samplers {number}`) lets {number} samplers "
        "prepare it; loader_workers=N of job.batches gives each process that prepares it N helpers"
    )
