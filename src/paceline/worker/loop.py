"""The loops of a script: one phase each, in which leases come in and sealed slots go out, one turn at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from paceline.core.sampling import sample_range
from paceline.core.worker.turn import WorkerState
from paceline.data.batch_source import BatchSource
from paceline.messages import BeginPhase, EvalGrant, EvalOver, Evaluated, Grant, Ok, PhaseBegun, PhaseOver, Stop
from paceline.reducers.base import Reducer
from paceline.telemetry import tracing
from paceline.types import INIT_STEP, PhaseSpec, Segment
from paceline.worker.binding import Binding
from paceline.worker.break_detection import left_by_break
from paceline.worker.prefetch import Prefetch
from paceline.worker.session import Session
from paceline.worker.turn import ScriptTurn, SendAhead
from paceline.worker.validation import Validators

_ANSWERED = frozenset(
    {WorkerState.PULLING, WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING},
)


class Loop:
    """Where a worker is in its script's loops. Only its methods change it.

    `phase` is the number of the loop, -1 before the first. `is_looping` is true from the start of a loop until it is
    known how it ended; `is_dropped` means that the script's frame has dropped the iterator, and why is not known.
    `metrics` are the newest validation results.
    """

    def __init__(
        self,
        session: Session,
        binding: Binding,
        reducer: Reducer,
        turn: ScriptTurn,
        validators: Validators,
        *,
        seed: int,
        send_ahead: SendAhead,
    ) -> None:
        self.phase = -1
        self.step = 0
        self.epoch = 0
        self.metrics: dict[str, float] = {}
        self.is_looping = False
        self.is_dropped = False
        self.turn = turn
        self.binding = binding
        self._session = session
        self._reducer = reducer
        self._validators = validators
        self._seed = seed
        self._send_ahead = send_ahead
        self._segment: Segment | None = None
        self._prefetch: Prefetch | None = None

    # ------------------------------------------------------------ the loop

    def run(self, phase: PhaseSpec, batches: BatchSource) -> Iterator[Any]:
        """One phase: a batch a turn."""
        self.phase += 1  # here, not in batches(): a loop that is never begun is no phase
        phase = msgspec.structs.replace(phase, number=self.phase)
        begun = self._session.ask(lambda req: BeginPhase(req, phase), PhaseBegun)
        self._segment = begun.segment
        if begun.segment is None:
            self.next_task()  # the job is over: only its final version is read
            self._leave()
            return
        self.is_looping, self.is_dropped = True, False
        prefetch = self._prefetch = Prefetch(batches, self._seed)
        self.turn.watch_gradients(self._send_ahead)
        try:
            yield from self._turns(prefetch)
            self._leave()
        except GeneratorExit:
            # `break` and an exception in the body look alike from here, except for the instruction at which the
            # script's frame stands. Where that does not tell, the next call on the job (or its end) settles it.
            # A worker that was told to leave has not left its loop in this sense.
            if not self._session.preemption.requested and left_by_break(sys._getframe(1)):
                self.end_job()
            else:
                self.is_dropped = True
            raise
        finally:
            self._prefetch = None
            prefetch.close()

    def _turns(self, prefetch: Prefetch) -> Iterator[Any]:
        while isinstance(grant := self.next_task(), Grant):
            if self.turn.seal_again(grant):
                continue
            content, num_samples = prefetch.take(grant)
            with tracing.span("turn", step=grant.step, slot=grant.slot):
                assert grant.segment is not None
                self.step, self.epoch = grant.step, sample_range(grant.segment, grant.step).epoch
                self.turn.begin(grant, num_samples)
                prefetch.seed_turn(grant)
                self.turn.compute()
                yield content
            del content
            self.turn.end()

    def _leave(self) -> None:
        self.is_looping = False
        self.turn.leave(self.step)

    def end_job(self) -> None:
        """The script left its loop: the job ends at the last committed version, which every worker then holds."""
        core, turn = self._session.core, self.turn
        fence = turn.grant.fence if turn.grant is not None and turn.is_open else None
        self._session.ask(lambda req: Stop(req, "the script left its loop", self.step, True), Ok)
        if core.state == WorkerState.COMPUTING:
            self._session.say(core.ask(time.monotonic(), self.phase, abandoned=fence))
        while isinstance(task := self.next_task(), Grant):
            self._session.say(core.ask(time.monotonic(), self.phase, abandoned=task.fence))
        self._leave()

    # ------------------------------------------------------------ tasks

    def next_task(self, evaluation: int = -1) -> Grant | PhaseOver | EvalOver:
        """Ask for work, and do validation slots and the initial weights on the way.

        Returns a training lease whose state is in the model, or what ended the wait: the end of the phase, or the
        result of `evaluation`.
        """
        session, core = self._session, self._session.core
        if core.state in (WorkerState.IDLE, WorkerState.OVER):
            session.say(core.ask(time.monotonic(), self.phase, evaluation=evaluation))
        while True:
            with tracing.span("wait"):
                session.wait(_ANSWERED, "grant a lease")
            task = core.task
            assert task is not None
            if core.state == WorkerState.PULLING and isinstance(task, Grant) and self._is_turn(task):
                assert self._prefetch is not None
                self._prefetch.prepare(task)  # while the servers work; if the lease becomes void, so does this
            with tracing.span("wait"):
                self._reducer.read(task)
            task = core.task
            if isinstance(task, Grant) and task.step == INIT_STEP:
                self.turn.seal_initial(task)
            elif isinstance(task, EvalGrant):
                self._validate_slot(task, evaluation)
            elif isinstance(task, Grant):
                return task
            else:
                assert isinstance(task, PhaseOver | EvalOver)
                self._end_wait(task)
                return task

    def _is_turn(self, grant: Grant) -> bool:
        """Whether `grant` will be a turn of the script."""
        return self._prefetch is not None and grant.segment is not None and not self.turn.was_computed(grant)

    def _end_wait(self, task: PhaseOver | EvalOver) -> None:
        self.metrics.update(task.metrics)
        self.binding.begin_turn()
        if isinstance(task, PhaseOver):
            # Other workers may be in a later loop by now: this one ended where its own segment says.
            segment = self._segment
            self.step = task.step if segment is None else min(task.step, segment.end_step)
            if segment is not None and self.step > segment.step:
                self.epoch = sample_range(segment, self.step - 1).epoch

    def _validate_slot(self, task: EvalGrant, evaluation: int) -> None:
        self.binding.begin_turn()
        sums = self._validators.run(task.validator, self.binding.model, task.slot)
        report = Evaluated(task.round, task.slot, task.fence, sums)
        core = self._session.core
        self._session.say(core.ask(time.monotonic(), self.phase, evaluated=report, evaluation=evaluation))
