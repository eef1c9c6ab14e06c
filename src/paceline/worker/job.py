"""The job that a script joins."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from paceline.data.loader import BatchMaker
from paceline.data.source import Collate, open_source, whole_number
from paceline.errors import JobError, JobRewoundError, LoopError, UsageError
from paceline.messages import (
    Bye,
    Claim,
    ClaimDone,
    Claimed,
    Declare,
    EvalOver,
    Failed,
    JobArgs,
    Ok,
    Prepare,
    Prepared,
    Stop,
    ValidatorSpec,
)
from paceline.types import PhaseSpec
from paceline.worker.binding import Binding
from paceline.worker.loop import SendAhead, Turns
from paceline.worker.optimizer_hook import Replay, attach, refuse_others
from paceline.worker.save_model import save_model
from paceline.worker.session import Session
from paceline.worker.validation import Metric, Validator

M = TypeVar("M", bound=Metric)


class Job:
    """One training run, as one worker sees it. Made by `paceline.join`; a context manager."""

    def __init__(
        self,
        session: Session,
        args: JobArgs,
        close: Callable[[bool], None],
        *,
        send_ahead: SendAhead = lambda nbytes, addresses: False,
    ) -> None:
        self._session = session
        self._args = args
        self._close = close
        self._turns = Turns(session, args.seed, send_ahead)
        self._binding: Binding | None = None
        self._guard: Any = None
        self._closed = False
        self._saves = 0

    # ------------------------------------------------------------ what a script sees

    @property
    def step(self) -> int:
        """The step whose slot this turn computes; after a loop, the number of steps done."""
        return self._turns.step

    @property
    def epoch(self) -> int:
        """The epoch of the current step."""
        return self._turns.epoch

    @property
    def lead(self) -> bool:
        """True in one live worker: for printing and the like. Another one takes over when it is lost."""
        return self._session.core.turn.lead

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest validation results, as of the end of the last loop."""
        return dict(self._turns.metrics)

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
        attach(optimizer, self._turns.seal)
        self._guard = refuse_others(lambda: self._turns.in_turn)
        self._binding = binding
        self._turns.prepare(binding, replay)
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
            over = self._turns.next_task(evaluation=validator.number)
        finally:
            validator.batches.close()
        assert isinstance(over, EvalOver)
        return dict(over.metrics)

    def _declare(self, metric: Metric, data: Any, batch_size: int | None, every: int) -> Validator:
        self._check_open()
        size = batch_size or (None if hasattr(data, "batch_size") else 256)
        source = open_source(data, size, shuffle=False)
        name = getattr(metric, "__name__", type(metric).__name__)
        declared = self._turns.validators
        validator = Validator(len(declared), name, metric, BatchMaker(source, self._args.seed))
        declared.append(validator)
        spec = ValidatorSpec(validator.number, name, every, source.length, source.batch_size)
        self._session.ask(lambda req: Declare(req, spec), Ok)
        self._session.core.declare(len(declared))
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
        number = self._turns.phase + 1
        if number > 0:
            self._binding.check_untouched()
        phase = PhaseSpec(number, source.length, source.batch_size, slots, epochs, source.shuffle, source.drop_last)
        return self._turns.loop(phase, BatchMaker(source, self._args.seed))

    def log(self, **values: Any) -> None:
        """Record numbers of this turn; the job shows their mean over the step's slots."""
        turns = self._turns
        if not turns.in_turn or turns.sealed:
            raise LoopError("job.log() belongs in a turn, before optimizer.step(): its values travel with the seal")
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                turns.logged[name] = value.detach()
            elif isinstance(value, numbers.Real):
                turns.logged[name] = float(value)
            else:
                raise UsageError(f"log({name}=…) takes one number, not {value!r}")

    def stop(self, reason: str = "stopped by the script") -> None:
        """End the job after the current step."""
        self._check_open(in_loop=True)
        grant = self._turns.grant
        step = grant.step if grant is not None else self._turns.step - 1
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

    def _check_open(self, *, in_loop: bool = False) -> None:
        """Every call on the job comes by here; the first one after a loop that was left settles that."""
        if self._closed:
            raise UsageError("this job is closed: call paceline.join() again")
        self._session.notice.check()  # a worker that was told to leave does nothing more, and does not end the job
        if self._turns.looping and not in_loop:
            if not self._turns.left:
                raise LoopError(
                    "this cannot be done inside of a turn: call it before or after the loop. If the loop was left by "
                    "break, loop over job.batches(...) directly, or close the iterator that you keep (it.close())"
                )
            self._turns.end_job()

    # ------------------------------------------------------------ the end

    def fail(self, trace: str) -> None:
        """Tell everyone that this worker's script raised."""
        if not self._closed:
            self._session.ask(lambda req: Failed(req, "script", trace), Ok)

    def close(self, *, failed: bool = False) -> None:
        """Leave the job. Idempotent; `paceline run` does it at the end of the script.

        Raises:
            JobRewoundError: the job went back to before this worker's place in the script.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._say_goodbye(failed)
        except JobRewoundError:
            failed = True
            raise
        except JobError:
            failed = True
        finally:
            for validator in self._turns.validators:
                validator.batches.close()
            self._turns.close()
            if self._guard is not None:
                self._guard.remove()
            self._close(failed)

    def _say_goodbye(self, failed: bool) -> None:
        if self._session.notice.given:
            self._session.leave()
        elif not failed:
            if self._turns.looping:
                self._turns.end_job()
            self._session.ask(Bye, Ok)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)
