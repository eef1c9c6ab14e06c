"""The turn: what the worker asked for, the task that it was given, and how far it is with it."""

from __future__ import annotations

from enum import StrEnum

from paceline.messages import Abort, EvalGrant, EvalOver, Grant, HeldLease, PhaseOver
from paceline.types import Fence

Task = Grant | EvalGrant | PhaseOver | EvalOver
"""The coordinator's answer to a turn."""


class WorkerState(StrEnum):
    """What a worker does between two calls of its host."""

    IDLE = "idle"
    ASKING = "asking"
    PULLING = "pulling"
    INITIALISING = "initialising"
    COMPUTING = "computing"
    OVER = "over"
    ABORTED = "aborted"


class CurrentTurn:
    """The turn in hand. Only its methods change it.

    `progress` is how far the script is, as `Register` reports it: twice the phase, plus one once the phase is over.
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
        """The fence of the lease in hand, if the task is a lease."""
        return self.task.fence if isinstance(self.task, Grant | EvalGrant) else None

    @property
    def is_waiting(self) -> bool:
        """Whether the script waits for the coordinator or for servers."""
        return self.state in (WorkerState.ASKING, WorkerState.PULLING)

    def declare(self, count: int) -> None:
        """Note that the script has declared `count` validators."""
        self.declared = count

    def ask(self, phase: int, evaluation: int) -> None:
        """Begin a turn in `phase`: there is no task until the coordinator answers."""
        self.state, self.task = WorkerState.ASKING, None
        self.phase, self.evaluation = phase, evaluation
        self.progress = max(self.progress, 2 * phase)

    def cancel(self) -> None:
        """Drop the task: the coordinator does not know this worker any more."""
        self.state, self.task = WorkerState.ASKING, None

    def accepts(self, message: Task) -> bool:
        """Whether a second answer to this turn replaces the first: only if the first lease is void."""
        task = self.task
        if isinstance(task, EvalOver) or task is None or isinstance(message, EvalOver):
            return False
        if (message.incarnation, message.epoch) > (task.incarnation, task.epoch):
            return self.state == WorkerState.PULLING  # the state that it waits to read does not exist any more
        if self.state != WorkerState.PULLING or not isinstance(task, Grant | EvalGrant):
            return False
        return not isinstance(message, Grant | EvalGrant) or message.fence > task.fence

    def take(self, task: Task) -> None:
        """Note the coordinator's answer."""
        self.task = task
        if not isinstance(task, EvalOver):
            self.lead = task.lead
        if isinstance(task, PhaseOver):
            self.progress = max(self.progress, 2 * task.phase + 1)

    def is_pulling_for(self, fence: Fence) -> bool:
        """Whether the worker waits to read the state for the lease with this fence."""
        return self.state == WorkerState.PULLING and self.fence == fence

    def pull(self) -> None:
        """The worker reads the state that its task needs."""
        self.state = WorkerState.PULLING

    def initialise(self) -> None:
        """The worker's own weights become version 0: there is nothing to read."""
        self.state = WorkerState.INITIALISING

    def proceed(self) -> None:
        """The model has the state that the task needs, if it needs one."""
        over = isinstance(self.task, PhaseOver | EvalOver)
        self.state = WorkerState.OVER if over else WorkerState.COMPUTING

    def end(self, abort: Abort) -> None:
        """The job has ended for this worker."""
        self.state, self.abort = WorkerState.ABORTED, abort

    def lease_in_hand(self, incarnation: int) -> HeldLease | None:
        """The training lease that this worker computes or reads for, if it is of this incarnation."""
        task = self.task
        if isinstance(task, Grant) and self.state != WorkerState.ASKING and task.incarnation == incarnation:
            return HeldLease(task.step, task.slot, task.fence, None, task.epoch)
        return None
