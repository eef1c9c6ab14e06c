"""The loop of a worker: leases in, sealed slots out, one turn of the script's loop body at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from paceline.core.sampling import Order, place, slot_seed
from paceline.core.worker import Fill, WorkerState
from paceline.data.loader import BatchMaker
from paceline.data.seeding import seed_all
from paceline.errors import LoopError
from paceline.messages import (
    BeginPhase,
    BlockFrame,
    EvalGrant,
    EvalOver,
    Evaluated,
    Grant,
    Ok,
    PhaseBegun,
    PhaseOver,
    Push,
    Seal,
    Stop,
)
from paceline.transport.base import Delivery
from paceline.types import BlockSpec, NodeId, PhaseSpec, Segment
from paceline.worker.binding import Binding, Stage
from paceline.worker.leaving import left_by_break
from paceline.worker.sealing import Replay
from paceline.worker.session import Session
from paceline.worker.validation import Validator

_TURN = frozenset({WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING})


class Turns:
    """Where this worker is in its script's loops. `prepare` comes before anything else.

    `looping` is true from the start of a loop until it is known how it ended; `left` means that the script's frame has
    dropped the loop and it is not known why.
    """

    def __init__(self, session: Session, seed: int) -> None:
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
        self._stages: list[Stage] = []
        self._stage_of: dict[int, Stage] = {}
        self._weight = 1.0
        self._began = 0.0
        self._hyper_before: Any = None
        session.on_fill = self._fill
        session.on_push = self._pushed

    def prepare(self, binding: Binding, replay: Replay | None) -> None:
        """What is trained."""
        self._binding, self._replay = binding, replay

    @property
    def binding(self) -> Binding:
        """What is trained; it has been prepared."""
        assert self._binding is not None
        return self._binding

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
        try:
            yield from self._turns(maker)
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
            maker.close()

    def _turns(self, maker: BatchMaker) -> Iterator[Any]:
        while self.next_task() is None:
            grant = self.grant
            assert grant is not None
            assert grant.segment is not None
            indices = self._order.samples(grant.segment, grant.step, grant.slot)
            batch = maker.make(indices, grant.step, grant.slot)
            self._begin_turn(grant, len(indices))
            yield batch
            self._end_turn()

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
        stage = self._free_stage()
        self._send_stage(stage, self.binding.stage_initial(stage), 1.0, frozenset())
        self._session.say(self._session.core.sealed(time.monotonic(), 1.0, (), {}, 0.0))

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
        self.sealed = False
        self.logged = {}
        self._weight = count / grant.segment.batch_size
        self._hyper_before = self.binding.hyper()
        self._began = time.monotonic()
        seed_all(slot_seed(self._seed, grant.step, grant.slot))

    def _end_turn(self) -> None:
        if self.sealed:
            self._check_scheduler()
            self.binding.check_untouched()
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
        binding = self.binding
        binding.check_untouched()
        empty = skipped or not binding.has_gradient
        weight = 0.0 if empty else self._weight
        absent: frozenset[int] = frozenset()
        carrying: tuple[BlockSpec, ...] = ()
        stage = self._free_stage()
        if not empty:
            absent, carrying = binding.stage(stage)
        self._send_stage(stage, carrying, weight, absent)
        logs = {name: float(value) for name, value in self.logged.items()}
        self.sealed = True
        core, now = self._session.core, time.monotonic()
        self._session.say(core.sealed(now, weight, binding.hyper(), logs, now - self._began))

    # ------------------------------------------------------------ blocks

    def _free_stage(self) -> Stage:
        unacked = self._session.core.unacked
        for stage in self._stages:
            if stage.free(unacked):
                return stage
        stage = self.binding.new_stage()
        self._stages.append(stage)
        return stage

    def _send_stage(self, stage: Stage, carrying: tuple[BlockSpec, ...], weight: float, absent: frozenset[int]) -> None:
        stage.requests.clear()
        stage.deliveries.clear()
        chosen = {b.index: b for b in carrying}
        parts: dict[NodeId, tuple[tuple[BlockFrame, ...], list[memoryview], Seal]] = {}
        for server, blocks in self._session.core.mine.items():
            mine = [chosen[b] for b in blocks if b in chosen]
            tensors = {p.tensor for b in mine for p in b.pieces}
            seal = Seal(weight, tuple(sorted(tensors & absent)), tuple((b.index, 0) for b in mine))
            frames = tuple(BlockFrame(b.index, b.dtype, b.numel) for b in mine)
            parts[server] = (frames, [stage.frames[b.index] for b in mine], seal)
        sends = self._session.core.push(time.monotonic(), parts)
        for send in sends:
            assert isinstance(send.message, Push)
            stage.requests.add(send.message.req)
            self._stage_of[send.message.req] = stage
        self._session.say(sends)
        for req in [r for r in self._stage_of if r not in self._session.core.unacked]:
            del self._stage_of[req]

    def _pushed(self, push: Push, delivery: Delivery) -> None:
        stage = self._stage_of.get(push.req)
        if stage is not None and not delivery.done:
            stage.deliveries.append(delivery)

    def _fill(self, fill: Fill) -> None:
        self.binding.fill(fill.frames, fill.payload)
