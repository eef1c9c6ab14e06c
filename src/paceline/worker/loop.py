"""The loop of a worker: leases in, sealed slots out, one turn of the script's loop body at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from paceline.core.sampling import Order, place, slot_seed
from paceline.core.worker.dispatch import Fill
from paceline.core.worker.turn import WorkerState
from paceline.data.loader import BatchMaker
from paceline.data.seeding import seed_all
from paceline.errors import LoopError
from paceline.messages import (
    BeginPhase,
    EvalGrant,
    EvalOver,
    Evaluated,
    Grant,
    Ok,
    PhaseBegun,
    PhaseOver,
    Stop,
)
from paceline.telemetry import tracing
from paceline.types import Kind, PhaseSpec, Segment
from paceline.worker.binding import Binding
from paceline.worker.break_detection import left_by_break
from paceline.worker.optimizer_hook import Replay
from paceline.worker.overlap import Overlap
from paceline.worker.pushes import Pushes
from paceline.worker.sealed_turn import SealedTurn
from paceline.worker.session import Session
from paceline.worker.validation import Validator

_TURN = frozenset({WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING})
_TOLD = _TURN | {WorkerState.PULLING}

SendAhead = Callable[[int, Iterable[str]], bool]
"""Whether gradients of so many bytes are sent to servers at these addresses while backward runs."""


class _Batch(NamedTuple):
    """The batch of a slot: a function of these three, whoever makes it and when."""

    segment: Segment
    step: int
    slot: int
    content: Any
    num_samples: int


class Turns:
    """Where this worker is in its script's loops. `prepare` comes before anything else.

    `looping` is true from the start of a loop until it is known how it ended; `left` means that the script's frame has
    dropped the loop and it is not known why.
    """

    def __init__(self, session: Session, seed: int, send_ahead: SendAhead) -> None:
        self.phase = -1
        self.step = 0
        self.epoch = 0
        self.metrics: dict[str, float] = {}
        self.validators: list[Validator] = []
        self.logged: dict[str, Any] = {}
        self.grant: Grant | None = None
        self.sealed = False
        self.looping = False
        self.left = False
        self._session = session
        self._seed = seed
        self._order = Order(seed)
        self._binding: Binding | None = None
        self._replay: Replay | None = None
        self._segment: Segment | None = None
        self._pushes: Pushes | None = None
        self._send_ahead = send_ahead
        self._overlap: Overlap | None = None
        self._maker: BatchMaker | None = None
        self._batch: _Batch | None = None
        self._last: SealedTurn | None = None
        self._version = -1
        self._seeded: tuple[int, int] | None = None
        self._began = 0.0
        self._computing = tracing.span("forward+backward")
        self._hyper_before: Any = None
        session.on_fill = self._fill

    def prepare(self, binding: Binding, replay: Replay | None) -> None:
        """What is trained."""
        self._binding, self._replay = binding, replay
        self._pushes = Pushes(self._session, binding)

    @property
    def binding(self) -> Binding:
        """What is trained; it has been prepared."""
        assert self._binding is not None
        return self._binding

    @property
    def pushes(self) -> Pushes:
        """What is sent; it has been prepared."""
        assert self._pushes is not None
        return self._pushes

    @property
    def in_turn(self) -> bool:
        """Whether the script is in the body of its loop."""
        return self.looping and self.grant is not None

    # ------------------------------------------------------------ the loop

    def loop(self, phase: PhaseSpec, maker: BatchMaker) -> Iterator[Any]:
        """One phase: a batch a turn."""
        self.phase += 1  # here, not in batches(): a loop that is never begun is no phase
        phase = msgspec.structs.replace(phase, number=self.phase)
        begun = self._session.ask(lambda req: BeginPhase(req, phase), PhaseBegun)
        self._segment = begun.segment
        if begun.segment is None:
            self.next_task()  # the job is over: what is left is to read its final version
            self._leave()
            return
        self.looping, self.left = True, False
        self._maker, self._batch = maker, None
        if self._overlap is None:
            self._watch()
        try:
            yield from self._turns()
            self._leave()
        except GeneratorExit:
            # `break` and an exception in the body look alike from here, except for the instruction at which the
            # script's frame stands. Where that does not tell, the next call on the job (or its end) settles it.
            # A worker that was told to leave has not left its loop in this sense.
            if not self._session.notice.given and left_by_break(sys._getframe(1)):
                self.end_job()
            else:
                self.left = True
            raise
        finally:
            self._maker = self._batch = None
            maker.close()

    def _watch(self) -> None:
        placement = self._session.core.model.placement
        nbytes = sum(b.nbytes for b in self.binding.blocks if b.kind == Kind.PARAMETER)
        addresses = () if placement is None else placement.addresses.values()
        if self.binding.on_cpu and self._send_ahead(nbytes, addresses):
            self._overlap = Overlap(self.binding, self.pushes, lambda: self.in_turn and not self.sealed)

    def _turns(self) -> Iterator[Any]:
        while self.next_task() is None:
            grant = self.grant
            assert grant is not None
            last = self._last
            if last is not None and last.is_of(grant) and last.version == self._session.core.model.version:
                self._seal_again(last)
                continue
            batch = self._make(grant)
            self._batch = None
            content = batch.content
            with tracing.span("turn", step=grant.step, slot=grant.slot):
                self._begin_turn(grant, batch.num_samples)
                del batch
                yield content
            del content
            self._end_turn()

    def _make(self, grant: Grant) -> _Batch:
        """The batch of `grant`, which may be made already."""
        segment, made = grant.segment, self._batch
        assert segment is not None
        assert self._maker is not None
        if made is None or (made.segment, made.step, made.slot) != (segment, grant.step, grant.slot):
            self._seeded = None  # samples are seeded one by one
            with tracing.span("make", step=grant.step, slot=grant.slot):
                indices = self._order.samples(segment, grant.step, grant.slot)
                content = self._maker.make(indices, grant.step, grant.slot)
            made = self._batch = _Batch(segment, grant.step, grant.slot, content, len(indices))
        return made

    def _seed_slot(self, grant: Grant) -> None:
        """Seed for the turn of `grant`, once: nothing between here and its first line draws a number."""
        if self._seeded != (grant.step, grant.slot):
            seed_all(slot_seed(self._seed, grant.step, grant.slot))
            self._seeded = grant.step, grant.slot

    def close(self) -> None:
        """Leave the script's model to itself."""
        if self._overlap is not None:
            self._overlap.close()

    def _leave(self) -> None:
        self.looping = False
        self.grant = None
        if self._replay is not None:
            self._replay.seek(self.step)

    def end_job(self) -> None:
        """The script left its loop: the job ends at the last committed version, which every worker then holds."""
        core = self._session.core
        fence = self.grant.fence if self.grant is not None and not self.sealed else None
        self._session.ask(lambda req: Stop(req, "the script left its loop", self.step, True), Ok)
        if core.state == WorkerState.COMPUTING:
            self._session.say(core.ask(time.monotonic(), self.phase, abandoned=fence))
        while self.next_task() is None:
            task = core.task
            assert isinstance(task, Grant)
            self._session.say(core.ask(time.monotonic(), self.phase, abandoned=task.fence))
        self._leave()

    # ------------------------------------------------------------ tasks

    def next_task(self, evaluation: int = -1) -> PhaseOver | EvalOver | None:
        """Ask for work, doing validation slots and the initial weights on the way.

        Returns None when a training slot is ready to compute (`grant`), else what ended the wait.
        """
        session, core = self._session, self._session.core
        if core.state in (WorkerState.IDLE, WorkerState.OVER):
            session.say(core.ask(time.monotonic(), self.phase, evaluation=evaluation))
        while True:
            with tracing.span("wait"):
                state = session.run((), _TOLD, "lease or state")
            if state == WorkerState.PULLING:
                if self._maker is not None and isinstance(core.task, Grant) and self._computes(core.task):
                    # While the servers are at work; if the lease becomes void, so does this.
                    self._make(core.task)
                    self._seed_slot(core.task)
                with tracing.span("wait"):
                    state = session.run((), _TURN, "lease or state")
            task = core.task
            if state == WorkerState.INITIALISING:
                self._push_initial()
            elif isinstance(task, EvalGrant):
                self._validate_slot(task, evaluation)
            elif isinstance(task, Grant):
                self.grant = task
                return None
            else:
                assert isinstance(task, PhaseOver | EvalOver)
                self._over(task)
                return task

    def _computes(self, task: Grant) -> bool:
        """Whether `task` will be a turn of the script."""
        return task.segment is not None and (self._last is None or not self._last.is_of(task))

    def _over(self, task: PhaseOver | EvalOver) -> None:
        self.metrics.update(task.metrics)
        if self._binding is not None:
            self._binding.begin_turn()
        if isinstance(task, PhaseOver):
            # Others may be in a later loop by now: this one ended where its own segment says.
            segment = self._segment
            self.step = task.step if segment is None else min(task.step, segment.end_step)
            if segment is not None and self.step > segment.step:
                self.epoch = place(segment, self.step - 1).epoch

    def _push_initial(self) -> None:
        sends = self.pushes.initial()
        self._session.say([*sends, *self._session.core.sealed(time.monotonic(), 1.0, (), {}, 0.0)])

    def _validate_slot(self, task: EvalGrant, evaluation: int) -> None:
        self.binding.begin_turn()
        sums = self.validators[task.validator].run(self.binding.model, task.slot)
        report = Evaluated(task.round, task.slot, task.fence, sums)
        core = self._session.core
        self._session.say(core.ask(time.monotonic(), self.phase, evaluated=report, evaluation=evaluation))

    # ------------------------------------------------------------ one turn

    def _begin_turn(self, grant: Grant, count: int) -> None:
        assert grant.segment is not None
        self.step = grant.step
        self.epoch = place(grant.segment, grant.step).epoch
        if self._replay is not None:
            self._replay.seek(grant.step)
        self.binding.begin_turn()
        self.sealed, self._last = False, None
        self._version = self._session.core.model.version
        self.logged = {}
        self.pushes.begin(count / grant.segment.batch_size)
        if self._overlap is not None:
            self._overlap.begin()
        self._hyper_before = self.binding.hyper()
        self._began = time.monotonic()
        self._seed_slot(grant)
        self._seeded = None
        self._computing = tracing.span("forward+backward", step=grant.step, slot=grant.slot)
        self._computing.__enter__()

    def _end_turn(self) -> None:
        if self.sealed:
            self._check_scheduler()
            self.binding.check_untouched()
            self.binding.drop_gradients()  # now, while others work: large ones take their time to go
            return
        if self.binding.has_gradient:
            raise LoopError(
                "this turn has gradients but no optimizer.step(). Paceline accumulates for you: use slots= for the "
                "number of micro-batches in a step, and call step() in every turn"
            )
        self.seal(True)

    def _check_scheduler(self) -> None:
        if self._replay is not None or self.binding.hyper() == self._hyper_before:
            return
        if any("initial_lr" in group for group in self.binding.optimizer.param_groups):
            raise LoopError(
                "a scheduler changed the hyper-parameters in the loop, by this worker's turns instead of the job's "
                "steps: pass it to job.prepare(model, optimizer, scheduler) and remove scheduler.step()"
            )

    def seal(self, skipped: bool) -> None:
        """`optimizer.step()`: send the turn's gradients, report the slot, ask for the next one. Never waits."""
        if not self.in_turn:
            raise LoopError("optimizer.step() outside of a turn: loop over job.batches(...)")
        if self.sealed:
            raise LoopError("two optimizer.step() calls in one turn: a turn is one slot, and step() seals it")
        self._computing.__exit__(None, None, None)
        binding, core = self.binding, self._session.core
        binding.check_untouched()
        with tracing.span("push", step=self.step):
            made = None if skipped else binding.made()
            sends = self.pushes.seal(made)
            self.sealed = True
            logs = {name: float(value) for name, value in self.logged.items()}
            now = time.monotonic()
            weight = 0.0 if made is None else self.pushes.weight
            assert self.grant is not None
            self._last = SealedTurn(self.grant, self._version, weight, binding.hyper(), logs, now - self._began)
            sends += core.sealed(now, *self._last.report)
            self._session.say(sends)
        if self._overlap is not None:
            self._overlap.sealed()

    def _seal_again(self, last: SealedTurn) -> None:
        """The slot is this worker's once more (its blocks have moved meanwhile): what it computed is sent again."""
        with tracing.span("push", step=last.grant.step, again=True):
            sends = self.pushes.seal_again()
            now = time.monotonic()
            sends += self._session.core.sealed(now, *last.report)
            self._session.say(sends)

    def _fill(self, fill: Fill) -> None:
        with tracing.span("fill"):
            self.binding.fill(fill.frames, cast(Sequence[memoryview], fill.payload))
