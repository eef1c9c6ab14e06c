"""The current turn of a worker: its phase, the task from the coordinator, and the state of the work on that task."""

from __future__ import annotations

from enum import StrEnum

from paceline.messages import Abort, EvalGrant, EvalOver, Grant, HeldLease, PhaseOver, Sealed
from paceline.types import Fence, Hyper

_NO_WARNINGS: dict[str, str] = {}

Task = Grant | EvalGrant | PhaseOver | EvalOver
"""The coordinator's answer to a `Turn` message."""


class WorkerState(StrEnum):
    """What a worker does now.

    IDLE: no task was asked for. ASKING: it waits for the coordinator's task. PULLING: it waits for servers, to read the
    model's state for the task. INITIALISING: it must send its weights as version 0. COMPUTING: the script computes the
    slot. OVER: the phase or the evaluation has ended. ABORTED: the job has ended for this worker.
    """

    IDLE = "idle"
    ASKING = "asking"
    PULLING = "pulling"
    INITIALISING = "initialising"
    COMPUTING = "computing"
    OVER = "over"
    ABORTED = "aborted"


class CurrentTurn:
    """The current turn. Only its methods change it.

    `progress` is how far the script is, as `Register` reports it: 2 * phase during a phase, 2 * phase + 1 after it.
    `declared` is the number of validators that the script has declared. `evaluation` is the validator whose result
    the worker waits for, or -1. `abort` is set once, when the job has ended for this worker.
    """

    def __init__(self) -> None:
        self.state = WorkerState.IDLE
        self.task: Task | None = None
        self.phase = -1
        self.evaluation = -1
        self.progress = -1
        self.declared = 0
        self.lead = False
        self.abort: Abort | None = None

    @property
    def fence(self) -> Fence | None:
        """The fence of the current lease; None if the task is not a lease."""
        return self.task.fence if isinstance(self.task, Grant | EvalGrant) else None

    @property
    def is_waiting(self) -> bool:
        """Whether the script waits for the coordinator or for servers."""
        return self.state in (WorkerState.ASKING, WorkerState.PULLING)

    def declare(self, count: int) -> None:
        """Note that the script has declared `count` validators."""
        self.declared = count

    def ask(self, phase: int, evaluation: int) -> None:
        """Begin a turn in `phase`, without a task until the coordinator answers."""
        self.state, self.task = WorkerState.ASKING, None
        self.phase, self.evaluation = phase, evaluation
        self.progress = max(self.progress, 2 * phase)

    def cancel(self) -> None:
        """Drop the task, because the coordinator has evicted this worker."""
        self.state, self.task = WorkerState.ASKING, None

    def accepts(self, message: Task) -> bool:
        """Whether `message`, a second answer to this turn, replaces the first. It does if the first one is void."""
        task = self.task
        if isinstance(task, EvalOver) or task is None or isinstance(message, EvalOver):
            return False
        if (message.incarnation, message.epoch) > (task.incarnation, task.epoch):
            return self.state == WorkerState.PULLING  # the state that the worker waits to read does not exist any more
        if self.state != WorkerState.PULLING or not isinstance(task, Grant | EvalGrant):
            return False
        return not isinstance(message, Grant | EvalGrant) or message.fence > task.fence

    def take(self, task: Task) -> None:
        """Note `task`, the coordinator's answer."""
        self.task = task
        if not isinstance(task, EvalOver):
            self.lead = task.lead
        if isinstance(task, PhaseOver):
            self.progress = max(self.progress, 2 * task.phase + 1)

    def is_pulling_for(self, fence: Fence) -> bool:
        """Whether the worker waits to read the state for the lease with this fence."""
        return self.state == WorkerState.PULLING and self.fence == fence

    def pull(self) -> None:
        """Note that the worker now reads the state that its task needs."""
        self.state = WorkerState.PULLING

    def initialise(self) -> None:
        """Note that the worker's own weights become version 0, so there is nothing to read."""
        self.state = WorkerState.INITIALISING

    def proceed(self) -> None:
        """Note that nothing is left to read: the work on the task begins, or the phase is over."""
        over = isinstance(self.task, PhaseOver | EvalOver)
        self.state = WorkerState.OVER if over else WorkerState.COMPUTING

    def end(self, abort: Abort) -> None:
        """Note that the job has ended for this worker, for the reason in `abort`."""
        self.state, self.abort = WorkerState.ABORTED, abort

    def report(
        self,
        weight: float,
        hyper: Hyper,
        logs: dict[str, float],
        seconds: float,
        warnings: dict[str, str] = _NO_WARNINGS,
        waited: float = 0.0,
    ) -> Sealed:
        """The report of the current slot. It goes to servers with the seal, and to the coordinator with the turn."""
        task = self.task
        assert isinstance(task, Grant)
        return Sealed(task.step, task.slot, task.fence, weight, hyper, logs, seconds, warnings, waited)

    def lease_in_hand(self, incarnation: int) -> HeldLease | None:
        """The training lease that this worker reads for or computes; None if there is none of this incarnation."""
        task = self.task
        if isinstance(task, Grant) and self.state != WorkerState.ASKING and task.incarnation == incarnation:
            return HeldLease(task.step, task.slot, task.fence, None, task.epoch, task.revision)
        return None
