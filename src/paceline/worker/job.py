"""The job that a script joins."""

from __future__ import annotations

import numbers
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import torch

from paceline.core.sampling import Order, place, slot_seed
from paceline.core.worker import Fill, WorkerState
from paceline.data.loader import BatchMaker
from paceline.data.seeding import seed_all
from paceline.data.source import Collate, open_source, whole_number
from paceline.errors import JobError, LoopError, UsageError
from paceline.messages import (
    BeginPhase,
    BlockFrame,
    Bye,
    Claim,
    ClaimDone,
    Claimed,
    Declare,
    EvalGrant,
    EvalOver,
    Evaluated,
    Failed,
    Grant,
    JobArgs,
    Ok,
    PhaseBegun,
    PhaseOver,
    Prepare,
    Prepared,
    Push,
    Seal,
    Stop,
    ValidatorSpec,
)
from paceline.transport.base import Delivery
from paceline.types import BlockSpec, NodeId, PhaseSpec, Segment
from paceline.worker.binding import Binding, Stage
from paceline.worker.leaving import left_by_break
from paceline.worker.saving import save_model
from paceline.worker.sealing import Replay, attach, refuse_others
from paceline.worker.session import Session
from paceline.worker.validation import Metric, Validator

M = TypeVar("M", bound=Metric)
_TURN = frozenset({WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING})


class Job:
    """One training run, as one worker sees it. Made by `paceline.join`; a context manager."""

    def __init__(self, session: Session, args: JobArgs, close: Callable[[bool], None]) -> None:
        self._session = session
        self._args = args
        self._close = close
        self._binding: Binding | None = None
        self._replay: Replay | None = None
        self._stages: list[Stage] = []
        self._stage_of: dict[int, Stage] = {}
        self._validators: list[Validator] = []
        self._order = Order(args.seed)
        self._phase = -1
        self._grant: Grant | None = None
        self._sealed = False
        self._logged: dict[str, Any] = {}
        self._began = 0.0
        self._hyper_before: Any = None
        self._step = 0
        self._epoch = 0
        self._metrics: dict[str, float] = {}
        self._finished = False
        self._closed = False
        self._looping = False
        self._left = False
        self._segment: Segment | None = None
        self._saves = 0
        self._guard: Any = None
        session.on_fill = self._fill
        session.on_push = self._pushed

    # ------------------------------------------------------------ what a script sees

    @property
    def step(self) -> int:
        """The step whose slot this turn computes; after a loop, the number of steps done."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch of the current step."""
        return self._epoch

    @property
    def lead(self) -> bool:
        """True in one live worker: for printing and the like. Another one takes over when it is lost."""
        return self._session.core.lead

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest validation results, as of the end of the last loop."""
        return dict(self._metrics)

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        clip_norm: float | None = None,
    ) -> tuple[Any, ...]:
        """Hand model and optimizer to the job, in place; returns what it was given.

        `clip_norm` clips the whole step's gradient, on the servers; clipping in the loop clips the slot's.

        Raises:
            UsageError: something in them cannot be trained here; the message names the remedy.
        """
        self._check_open()
        if self._binding is not None:
            raise UsageError("prepare() was called before: a job trains one model with one optimizer")
        binding = Binding(model, optimizer, clip_norm)
        replay = Replay(scheduler, binding) if scheduler is not None else None
        attach(optimizer, self._seal)
        self._guard = refuse_others(lambda: self._looping and self._grant is not None)
        self._binding, self._replay = binding, replay
        prepared = self._session.ask(lambda req: Prepare(req, binding.spec), Prepared)
        self._session.place(prepared)
        return (model, optimizer) if scheduler is None else (model, optimizer, scheduler)

    def validate(self, data: Any, *, every: int, batch_size: int | None = None) -> Callable[[M], M]:
        """Decorate ``fn(model, *batch) -> {name: value}``: it runs on `data` every `every` steps and at a loop's end.

        The work is shared by the workers, on one pinned version. A scalar is the slot's mean, a vector has one value a
        sample.
        """
        every = whole_number("every", every)
        if every < 1:
            raise UsageError(f"every must be at least 1, not {every}")

        def register(metric: M) -> M:
            self._declare(metric, data, batch_size, every)
            return metric

        return register

    def evaluate(self, metric: Metric, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Run `metric` on `data` now, shared by all workers, outside of a loop; every worker must call it."""
        self._check_open()
        if self._binding is None:
            raise UsageError("nothing to evaluate: call job.prepare(model, optimizer) first")
        validator = self._declare(metric, data, batch_size, 0)
        try:
            over = self._turns(None, evaluation=validator.number)
        finally:
            validator.batches.close()
        assert isinstance(over, EvalOver)
        return dict(over.metrics)

    def _declare(self, metric: Metric, data: Any, batch_size: int | None, every: int) -> Validator:
        self._check_open()
        size = batch_size or (None if hasattr(data, "batch_size") else 256)
        source = open_source(data, size, shuffle=False)
        name = getattr(metric, "__name__", type(metric).__name__)
        validator = Validator(len(self._validators), name, metric, BatchMaker(source, self._args.seed))
        self._validators.append(validator)
        spec = ValidatorSpec(validator.number, name, every, source.length, source.batch_size)
        self._session.ask(lambda req: Declare(req, spec), Ok)
        return validator

    def batches(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        slots: int | None = None,
        epochs: int = 1,
        shuffle: bool = True,
        collate_fn: Collate | None = None,
        drop_last: bool = False,
        loader_workers: int = 0,
    ) -> Iterator[Any]:
        """Iterate over leased slots: one batch a turn, until all epochs are committed by the job as a whole.

        `slots` micro-batches of `batch_size` make one step; not given, there is one per worker. Leaving the loop by
        `break` ends the job at the last committed version. After the loop the model holds the loop's final version.
        """
        self._check_open()
        if self._binding is None:
            raise UsageError("call job.prepare(model, optimizer) before job.batches(...)")
        slots = None if slots is None else whole_number("slots", slots)
        if slots is not None and slots < 1:
            raise UsageError(f"slots must be at least 1, not {slots}")
        epochs = whole_number("epochs", epochs)
        if epochs < 0:
            raise UsageError(f"epochs must not be negative, not {epochs}")
        source = open_source(
            data,
            batch_size,
            shuffle=shuffle,
            collate_fn=collate_fn,
            drop_last=drop_last,
            loader_workers=loader_workers,
        )
        if self._phase >= 0:
            self._binding.check_untouched()
        phase = PhaseSpec(
            self._phase + 1, source.length, source.batch_size, slots, epochs, source.shuffle, source.drop_last
        )
        return self._loop(phase, BatchMaker(source, self._args.seed))

    def log(self, **values: Any) -> None:
        """Record numbers of this turn; the job shows their mean over the step's slots."""
        if self._grant is None or not self._looping or self._sealed:
            raise LoopError("job.log() belongs in a turn, before optimizer.step(): its values travel with the seal")
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                self._logged[name] = value.detach()
            elif isinstance(value, numbers.Real):
                self._logged[name] = float(value)
            else:
                raise UsageError(f"log({name}=…) takes one number, not {value!r}")

    def stop(self, reason: str = "stopped by the script") -> None:
        """End the job after the current step."""
        self._check_open(in_loop=True)
        step = self._grant.step if self._grant is not None else self._step - 1
        self._session.ask(lambda req: Stop(req, str(reason), step), Ok)

    def save(self, path: str | Path) -> None:
        """Write the model's `state_dict` as safetensors: one worker does it, the others wait until it is done."""
        self._check_open()
        if self._binding is None:
            raise UsageError("nothing to save: call job.prepare(model, optimizer) first")
        self._saves += 1  # workers run the same script: the n-th call of each is the same save
        key = f"save {self._saves} {Path(path)}"
        if self._session.ask(lambda req: Claim(req, key), Claimed).mine:
            save_model(self._binding.model, Path(path))
            self._session.ask(lambda req: ClaimDone(req, key), Ok)

    # ------------------------------------------------------------ the loop

    def _loop(self, phase: PhaseSpec, maker: BatchMaker) -> Iterator[Any]:
        self._phase += 1  # here, not in batches(): a loop that is never begun is no phase
        phase = msgspec.structs.replace(phase, number=self._phase)
        begun = self._session.ask(lambda req: BeginPhase(req, phase), PhaseBegun)
        self._segment = begun.segment
        if begun.segment is None:
            self._turns(None)  # the job is over: what is left is to read its final version
            self._leave()
            return
        self._looping, self._left = True, False
        try:
            yield from self._turns_of(maker)
            self._leave()
        except GeneratorExit:
            # `break` and an exception in the body look alike from here, except for the instruction at which the
            # script's frame stands. Where that does not tell, the next call on the job (or its end) settles it.
            if left_by_break(sys._getframe(1)):
                self._break()
            else:
                self._left = True
            raise
        finally:
            maker.close()

    def _leave(self) -> None:
        self._looping = False
        self._grant = None
        if self._replay is not None:
            self._replay.seek(self._step)

    def _turns_of(self, maker: BatchMaker) -> Iterator[Any]:
        assert self._binding is not None
        while True:
            over = self._turns(maker)
            if over is not None:
                return
            grant = self._grant
            assert grant is not None
            assert grant.segment is not None
            indices = self._order.samples(grant.segment, grant.step, grant.slot)
            batch = maker.make(indices, grant.step, grant.slot)
            self._begin_turn(grant, len(indices))
            yield batch
            self._end_turn()

    def _turns(self, maker: BatchMaker | None, evaluation: int = -1) -> PhaseOver | EvalOver | None:
        """Ask for work, doing validation slots and the initial weights on the way.

        Returns None when a training slot is ready to compute (`self._grant`), else what ended the wait.
        """
        session, core = self._session, self._session.core
        if core.state in (WorkerState.IDLE, WorkerState.OVER):
            session.say(core.ask(time.monotonic(), self._phase, evaluation=evaluation))
        while True:
            state = session.run((), _TURN, "lease or state")
            task = core.task
            if state == WorkerState.INITIALISING:
                self._push_initial()
            elif isinstance(task, EvalGrant):
                self._validate_slot(task, evaluation)
            elif isinstance(task, Grant):
                self._grant = task
                return None
            else:
                assert isinstance(task, PhaseOver | EvalOver)
                self._over(task)
                return task

    def _over(self, task: PhaseOver | EvalOver) -> None:
        self._metrics.update(task.metrics)
        if self._binding is not None:
            self._binding.begin_turn()
        if isinstance(task, PhaseOver):
            # Others may be in a later loop by now: this one ended where its own segment says.
            segment = self._segment
            self._step = task.step if segment is None else min(task.step, segment.end_step)
            if segment is not None and self._step > segment.step:
                self._epoch = place(segment, self._step - 1).epoch
            self._finished = task.finished

    def _begin_turn(self, grant: Grant, count: int) -> None:
        assert self._binding is not None
        assert grant.segment is not None
        self._step = grant.step
        self._epoch = place(grant.segment, grant.step).epoch
        if self._replay is not None:
            self._replay.seek(grant.step)
        self._binding.begin_turn()
        self._sealed = False
        self._logged = {}
        self._weight = count / grant.segment.batch_size
        self._hyper_before = self._binding.hyper()
        self._began = time.monotonic()
        seed_all(slot_seed(self._args.seed, grant.step, grant.slot))

    def _end_turn(self) -> None:
        assert self._binding is not None
        if self._sealed:
            self._check_scheduler()
            self._binding.check_untouched()
            return
        if self._binding.has_gradient:
            raise LoopError(
                "this turn has gradients but no optimizer.step(). Paceline accumulates for you: use slots= for the "
                "number of micro-batches in a step, and call step() in every turn"
            )
        self._seal(True)

    def _check_scheduler(self) -> None:
        assert self._binding is not None
        if self._replay is not None or self._binding.hyper() == self._hyper_before:
            return
        if any("initial_lr" in group for group in self._binding.optimizer.param_groups):
            raise LoopError(
                "a scheduler changed the hyper-parameters in the loop, by this worker's turns instead of the job's "
                "steps: pass it to job.prepare(model, optimizer, scheduler) and remove scheduler.step()"
            )

    def _seal(self, skipped: bool) -> None:
        """`optimizer.step()`: send the turn's gradients, report the slot, ask for the next one. Never waits."""
        binding, grant = self._binding, self._grant
        assert binding is not None
        if grant is None or not self._looping:
            raise LoopError("optimizer.step() outside of a turn: loop over job.batches(...)")
        if self._sealed:
            raise LoopError("two optimizer.step() calls in one turn: a turn is one slot, and step() seals it")
        binding.check_untouched()
        empty = skipped or not binding.has_gradient
        weight = 0.0 if empty else self._weight
        absent: frozenset[int] = frozenset()
        carrying: tuple[BlockSpec, ...] = ()
        stage = self._free_stage()
        if not empty:
            absent, carrying = binding.stage(stage)
        self._send_stage(stage, carrying, weight, absent)
        logs = {name: float(value) for name, value in self._logged.items()}
        self._sealed = True
        core, now = self._session.core, time.monotonic()
        self._session.say(core.sealed(now, weight, binding.hyper(), logs, now - self._began))

    # ------------------------------------------------------------ blocks

    def _free_stage(self) -> Stage:
        assert self._binding is not None
        unacked = self._session.core.unacked
        for stage in self._stages:
            if stage.free(unacked):
                return stage
        stage = self._binding.new_stage()
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
        assert self._binding is not None
        self._binding.fill(fill.frames, fill.payload)

    def _push_initial(self) -> None:
        assert self._binding is not None
        stage = self._free_stage()
        self._send_stage(stage, self._binding.stage_initial(stage), 1.0, frozenset())
        self._session.say(self._session.core.sealed(time.monotonic(), 1.0, (), {}, 0.0))

    def _validate_slot(self, task: EvalGrant, evaluation: int) -> None:
        assert self._binding is not None
        self._binding.begin_turn()
        sums = self._validators[task.validator].run(self._binding.model, task.slot)
        report = Evaluated(task.round, task.slot, task.fence, sums)
        core = self._session.core
        self._session.say(core.ask(time.monotonic(), self._phase, evaluated=report, evaluation=evaluation))

    # ------------------------------------------------------------ the end

    def _break(self) -> None:
        """The script left its loop: the job ends at the last committed version, which every worker then holds."""
        core = self._session.core
        fence = self._grant.fence if self._grant is not None and not self._sealed else None
        self._session.ask(lambda req: Stop(req, "the script left its loop", self._step, True), Ok)
        if core.state == WorkerState.COMPUTING:
            self._session.say(core.ask(time.monotonic(), self._phase, abandoned=fence))
        while self._turns(None) is None:
            task = core.task
            assert isinstance(task, Grant)
            self._session.say(core.ask(time.monotonic(), self._phase, abandoned=task.fence))
        self._leave()

    def _check_open(self, *, in_loop: bool = False) -> None:
        """Every call on the job comes by here; the first one after a loop that was left settles that."""
        if self._closed:
            raise UsageError("this job is closed: call paceline.join() again")
        if self._looping and not in_loop:
            if not self._left:
                raise LoopError(
                    "this cannot be done inside of a turn: call it before or after the loop. If the loop was left by "
                    "break, loop over job.batches(...) directly, or close the iterator that you keep (it.close())"
                )
            self._break()

    def fail(self, trace: str) -> None:
        """Tell everyone that this worker's script raised."""
        if not self._closed:
            self._session.ask(lambda req: Failed(req, "script", trace), Ok)

    def close(self, *, failed: bool = False) -> None:
        """Leave the job. Idempotent; `paceline run` does it at the end of the script."""
        if self._closed:
            return
        self._closed = True
        try:
            if not failed:
                if self._looping:
                    self._break()
                self._session.ask(lambda req: Bye(req), Ok)
        except JobError:
            failed = True
        finally:
            for validator in self._validators:
                validator.batches.close()
            if self._guard is not None:
                self._guard.remove()
            self._close(failed)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)
