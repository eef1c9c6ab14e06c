"""The loops over `job.batches(...)`: each is one phase. One turn per leased slot, until the phase is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from paceline.core.sampling import sample_range
from paceline.core.worker.turn import WorkerState
from paceline.data.batch_source import Batch, BatchSource
from paceline.messages import (
    BeginPhase,
    EvalGrant,
    EvalOver,
    Evaluated,
    Grant,
    LeaveOut,
    Ok,
    PhaseBegun,
    PhaseOver,
    Stop,
    Warn,
)
from paceline.reducers.base import Reducer
from paceline.telemetry import tracing
from paceline.types import INIT_STEP, Measured, PhaseSpec, Segment
from paceline.worker.behind import Behind
from paceline.worker.binding import Binding
from paceline.worker.break_detection import left_by_break
from paceline.worker.prefetch import Prefetch
from paceline.worker.session import Session
from paceline.worker.turn import ScriptTurn, SendAhead
from paceline.worker.validation import Validators

_ANSWERED = frozenset(
    {WorkerState.PULLING, WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING},
)


class Watcher(Protocol):
    """What follows the turns of a script."""

    def see(self, measured: Mapping[str, Measured], step: int, *, passed: bool) -> None:
        """A turn of `step` sees these results, or a loop has ended after `step`."""

    def turn_ended(self, step: int) -> None:
        """The slot of a turn of `step` is sealed."""


class Loop:
    """The loops of one script. Only its methods change it.

    `phase` is the number of the current loop, -1 before the first. `is_looping` is true from the start of a loop until
    it is known how the loop ended. `is_dropped`: the script has dropped the iterator, by `break` or by an exception;
    it is not known which. `metrics` are the validation results that the script sees.
    """

    def __init__(
        self,
        session: Session,
        binding: Binding,
        reducer: Reducer,
        turn: ScriptTurn,
        validators: Validators,
        *,
        watchers: Sequence[Watcher] = (),
        seed: int,
        send_ahead: SendAhead,
    ) -> None:
        """`watchers` are told what turns see, and when they end."""
        self.phase = -1
        self.step = 0
        self.epoch = 0
        self.metrics: dict[str, Measured] = {}
        self.is_looping = False
        self.is_dropped = False
        self.turn = turn
        self.binding = binding
        self.behind = Behind(session.core.registration.introduction.name, binding.model, self._warn)
        self._session = session
        self._reducer = reducer
        self._validators = validators
        self._watchers = tuple(watchers)
        self._seed = seed
        self._send_ahead = send_ahead
        self._segment: Segment | None = None
        self._prefetch: Prefetch | None = None
        self._left_out: set[tuple[int, int, int]] = set()
        self._max_bad_records = 0

    # ------------------------------------------------------------ the loop

    def run(
        self, phase: PhaseSpec, batches: BatchSource, check: Callable[[int], None], max_bad_records: int = 0
    ) -> Iterator[Any]:
        """Run one phase: yield one batch per turn. ``check(number)`` compares the data with those of other workers.

        The job fails with more than `max_bad_records` bad records.
        """
        self._max_bad_records = max_bad_records
        self.phase += 1  # here, not in batches(): an iterator that is never used is no phase
        phase = msgspec.structs.replace(phase, number=self.phase)
        try:
            check(self.phase)
            begun = self._session.ask(lambda req: BeginPhase(req, phase), PhaseBegun)
        except BaseException:
            batches.close()
            raise
        self._segment = begun.segment
        if begun.segment is None:
            batches.close()
            self.next_task()  # the job has ended: only read its final version
            self._leave()
            return
        self.is_looping, self.is_dropped = True, False
        prefetch = self._prefetch = Prefetch(batches, self._seed)
        self.turn.watch_gradients(self._send_ahead)
        try:
            yield from self._turns(prefetch)
            self._leave()
        except GeneratorExit:
            # `break` and an exception in the body both raise GeneratorExit here. They differ in the instruction at
            # which the script's frame stands. If that instruction does not show it, the next call on the job, or the
            # end of the script, decides. A worker that was asked to leave must not end the job.
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
            batch = prefetch.take(grant)
            self._leave_out(batch)
            with tracing.span("turn", step=grant.step, slot=grant.slot):
                assert grant.segment is not None
                self.step, self.epoch = grant.step, sample_range(grant.segment, grant.step).epoch
                self.metrics = grant.metrics
                self.turn.begin(grant, batch.num_samples, prefetch.waited)
                prefetch.seed_turn(grant)
                self.turn.compute()
                self._see(grant.step)
                if batch.num_samples:  # else all its records are bad: the slot is sealed empty
                    yield batch.content
            del batch
            self.turn.end()
            for watcher in self._watchers:
                watcher.turn_ended(grant.step)

    def _see(self, step: int) -> None:
        for watcher in self._watchers:
            watcher.see(self.metrics, step, passed=self.behind.is_behind)

    def _leave_out(self, batch: Batch) -> None:
        """Have the bad records of `batch` noted in the log, before the slot without them is sealed (rule 24)."""
        new = tuple(record for record in batch.bad if (self.phase, record.first, record.count) not in self._left_out)
        if new:
            limit = self._max_bad_records
            self._session.ask(lambda req: LeaveOut(req, self.phase, new, limit), Ok)
            self._left_out |= {(self.phase, record.first, record.count) for record in new}

    def _leave(self) -> None:
        self.is_looping = False
        self.turn.leave(self._segment, self.step)
        self._see(self.step - 1)

    def leave_job(self) -> None:
        """The script leaves the job: end the job if a loop is open, and warn if the job is in a later loop."""
        if self.is_looping:
            self.end_job()
        if self.behind.is_behind:
            self.behind.leave()

    def end_job(self) -> None:
        """End the job, and read its last version: the script has left its loop.

        A step counts if all its slots are sealed. So this worker waits until such a step is committed, and seals its
        last slot once more if a change of placement has voided it.
        """
        core, turn = self._session.core, self.turn
        fence = turn.grant.fence if turn.grant is not None and turn.is_open else None
        self._stop_at_once(self.step)
        if core.state == WorkerState.COMPUTING:
            self._session.say(core.ask(time.monotonic(), self.phase, abandoned=fence))
        while isinstance(task := self.next_task(), Grant):
            if not turn.seal_again(task):
                self._stop_at_once(task.step)  # perhaps all workers have left the loop: nobody computes this slot
                self._session.say(core.ask(time.monotonic(), self.phase, abandoned=task.fence))
        self._leave()

    def _stop_at_once(self, step: int) -> None:
        self._session.ask(lambda req: Stop(req, "the script left its loop", step, True), Ok)

    def _warn(self, topic: str, text: str) -> None:
        self._session.ask(lambda req: Warn(req, topic, text), Ok)

    # ------------------------------------------------------------ tasks

    def next_task(self, evaluation: int = -1) -> Grant | PhaseOver | EvalOver:
        """Return the next training lease. Computes validation slots and sends the initial weights before, if asked to.

        The model then has the state that the lease needs. If there is no lease: returns the end of the phase, or the
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
                self._prefetch.prepare(task)  # while the servers work; the batch is dropped if the lease becomes void
            with tracing.span("wait"):
                self._reducer.read(task)
            task = core.task
            if isinstance(task, Grant) and task.step == INIT_STEP:
                self.turn.seal_initial(task)
            elif isinstance(task, EvalGrant):
                self._validate_slot(task, evaluation)
            elif isinstance(task, Grant):
                self.behind.caught_up()
                return task
            else:
                assert isinstance(task, PhaseOver | EvalOver)
                self._end_wait(task)
                return task

    def _is_turn(self, grant: Grant) -> bool:
        """Whether the script will compute the slot of `grant`."""
        return self._prefetch is not None and grant.segment is not None and not self.turn.was_computed(grant)

    def _end_wait(self, task: PhaseOver | EvalOver) -> None:
        self.metrics = task.metrics if isinstance(task, PhaseOver) else {**self.metrics, **task.shown}
        self.binding.begin_turn()
        if isinstance(task, PhaseOver):
            if task.version < 0:
                self.behind.passed(self.phase)
            else:
                self.behind.caught_up()
            # Other workers may be in a later loop already. This loop has ended at the end of its own segment.
            segment = self._segment = task.segment or self._segment  # live changes may have moved the end
            self.step = task.step if segment is None else min(task.step, segment.end_step)
            if segment is not None and self.step > segment.step:
                self.epoch = sample_range(segment, self.step - 1).epoch

    def _validate_slot(self, task: EvalGrant, evaluation: int) -> None:
        self.binding.begin_turn()
        with self.behind.validating():
            sums = self._validators.run(task.validator, self.binding.model, task.slot)
        report = Evaluated(task.round, task.slot, task.fence, sums)
        core = self._session.core
        self._session.say(core.ask(time.monotonic(), self.phase, evaluated=report, evaluation=evaluation))
