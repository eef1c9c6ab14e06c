"""The job that a script joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from paceline.clients.observer import decode_status
from paceline.data.batch_source import LocalBatches
from paceline.data.choice import Choice
from paceline.data.data_key import data_key
from paceline.data.data_spec import Collate
from paceline.data.fingerprint import Fingerprints
from paceline.data.servable import servable
from paceline.errors import JobError, JobRewoundError, LoopError, UsageError
from paceline.messages import Bye, EvalOver, Failed, JobArgs, Ok, Prepare, Prepared, StatusReply, StatusRequest, Stop
from paceline.messages.status import BestStatus
from paceline.reducers.base import Reducer
from paceline.reducers.servers import ServersReducer
from paceline.worker.binding import Binding
from paceline.worker.callbacks import Callbacks
from paceline.worker.data_comparison import DataComparison
from paceline.worker.last_checkpoint import save_last
from paceline.worker.live_dials import set_dials
from paceline.worker.loop import Loop
from paceline.worker.loop_hint import in_loop_text
from paceline.worker.metric_series import Metric
from paceline.worker.metrics import Metrics, metrics_at
from paceline.worker.optimizer_hook import attach, refuse_others
from paceline.worker.phase_arguments import log_values, phase_arguments, step_in_hand
from paceline.worker.sampled_batches import SampledBatches
from paceline.worker.saves import Saves
from paceline.worker.scheduler_replay import SchedulerReplay
from paceline.worker.script_errors import add_remedy
from paceline.worker.script_policies import Condition, ScriptPolicies
from paceline.worker.session import Session
from paceline.worker.turn import ScriptTurn, SendAhead
from paceline.worker.validation import Validator, Validators, declare_validator, period_of, validation_data

M = TypeVar("M", bound=Metric)


class Job(AbstractContextManager["Job"]):
    """One training run, as one worker sees it. Made by `paceline.join`; a context manager."""

    def __init__(
        self,
        session: Session,
        args: JobArgs,
        close: Callable[[bool], None],
        *,
        send_ahead: SendAhead = lambda nbytes, addresses: False,
        make_reducer: Callable[[Session, Binding], Reducer] = ServersReducer,
        on_saved: Callable[[Path], None] | None = None,
    ) -> None:
        self._session = session
        self._args = args
        self._close = close
        self._send_ahead = send_ahead
        self._make_reducer = make_reducer
        self._validators = Validators(args.seed)
        self._data = DataComparison(session, Fingerprints(args.seed))
        self._loop: Loop | None = None
        self._guard: Any = None
        self._closed = False
        self._saves = Saves(session, on_saved)
        self._policies = ScriptPolicies(session)
        self._callbacks = Callbacks(session)

    @property
    def step(self) -> int:
        """The step of the current turn; after a loop, the number of committed steps."""
        return 0 if self._loop is None else self._loop.step

    @property
    def epoch(self) -> int:
        """The epoch of the current step."""
        return 0 if self._loop is None else self._loop.epoch

    @property
    def passed(self) -> bool:
        """True after a loop that was finished before this worker came to it: the job is in a later loop.

        The model does not have the weights of that loop then. `metrics`, `evaluate` and `save` are those of then.
        """
        return self._loop is not None and self._loop.behind.is_behind

    @property
    def lead(self) -> bool:
        """True in one live worker, for printing and the like. If that worker is lost, it becomes true in another."""
        return self._session.core.turn.lead

    @property
    def metrics(self) -> Metrics:
        """The newest validation results, by name; `metrics.step` is the step of the newest one, -1 if there is none.

        In a loop in lock-step, turns of step t see the results of versions that are at least `every` steps old: every
        worker sees the same at the same step, in every run. After a loop they are those of its end.
        """
        return metrics_at(self.step, {} if self._loop is None else self._loop.metrics, declared=len(self._validators))

    @property
    def callbacks(self) -> Callbacks:
        """Decorators for functions that are called when something has happened."""
        return self._callbacks

    @property
    def best(self) -> BestStatus | None:
        """The best version by `--best` that is kept, None if there is none."""
        return decode_status(self._session.ask(StatusRequest, StatusReply)).best

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        clip_norm: float | None = None,
        scheduler_every: str = "step",
    ) -> tuple[Any, ...]:
        """Make `model` and `optimizer` those of the job, in place; returns its arguments.

        `clip_norm` clips the gradient of the whole step, on the servers. Clipping in the loop clips that of one slot.
        The job calls `scheduler.step()` after each step, or after each epoch with ``scheduler_every="epoch"``.

        Raises:
            UsageError: a job cannot train them; the message says why and names the remedy.
        """
        self._check_open("job.prepare")
        if self._loop is not None:
            raise UsageError("prepare() was called before: a job trains one model with one optimizer")
        binding = Binding(model, optimizer, clip_norm)
        replay = SchedulerReplay(scheduler, binding, scheduler_every) if scheduler is not None else None
        reducer = self._make_reducer(self._session, binding)
        turn = ScriptTurn(self._session, binding, replay, reducer)
        attach(optimizer, turn.seal)
        self._guard = refuse_others(lambda: turn.grant is not None)
        self._loop = Loop(
            self._session,
            binding,
            reducer,
            turn,
            self._validators,
            watchers=(self._policies, self._callbacks),
            seed=self._args.seed,
            send_ahead=self._send_ahead,
        )
        prepared = self._session.ask(lambda req: Prepare(req, binding.spec), Prepared)
        self._session.place(prepared)
        return (model, optimizer) if scheduler is None else (model, optimizer, scheduler)

    def servable(self, factory: Callable[[], torch.nn.Module], example: Any) -> None:
        """Say how to build the model, and what its input looks like, for `paceline export` and `paceline serve`.

        They run the script up to this call: call it right after `join`. `factory` takes no arguments. `example` is an
        input with the rows first: a tensor, a tuple of tensors, or a dictionary by the names of the arguments.

        Raises:
            UsageError: `factory` cannot be called, or `example` is no input.
        """
        self._check_open("job.servable")
        servable(factory, example)

    def validate(self, data: Any, *, every: int, batch_size: int | None = None) -> Callable[[M], M]:
        """Decorate ``fn(model, *batch) -> {name: value}``: it runs on `data` every `every` steps and at a loop's end.

        The workers share the work; all compute on the same version. A scalar is the mean of its batch, a vector has one
        value per sample.
        """
        every = period_of(every)

        def register(metric: M) -> M:
            self._declare("job.validate", metric, data, batch_size, every)
            return metric

        return register

    def evaluate(self, metric: Metric, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Compute `metric` on `data` now, outside of a loop. The workers share the work, so each must call it.

        Calls with the same function and data share their names in `metrics` and in the summary: the newest counts.
        """
        self._check_open("job.evaluate")
        if self._loop is None:
            raise UsageError("nothing to evaluate: call job.prepare(model, optimizer) first")
        validator = self._declare("job.evaluate", metric, data, batch_size, 0)
        try:
            self._data.compare(f"the evaluation {validator.name} (number {validator.number + 1})", validator.batches)
            over = self._loop.next_task(evaluation=validator.number)
        finally:
            validator.batches.close()
        assert isinstance(over, EvalOver)
        return dict(over.metrics)

    def _declare(self, call: str, metric: Metric, data: Any, batch_size: int | None, every: int) -> Validator:
        self._check_open(call)
        period = -1 if self._loop is None else self._loop.phase
        validator = self._validators.declare(metric, validation_data(data, batch_size), every=every, period=period)
        declare_validator(self._session, validator, every)
        self._session.core.declare(len(self._validators))
        return validator

    def batches(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        slots: int | None = None,
        epochs: int = 1,
        steps: int | None = None,
        shuffle: bool | str = True,
        collate_fn: Collate | None = None,
        drop_last: bool = False,
        loader_workers: int = 0,
        fraction: float = 1.0,
        weights: Any = None,
        on_bad_record: str = "raise",
        max_bad_records: int = 100,
    ) -> Iterator[Any]:
        """Iterate over leased slots, one batch per turn, until all workers together have committed all epochs.

        `data` is a map-style Dataset, a DataLoader or a source, as from `paceline.data.open`. `slots` micro-batches of
        `batch_size` samples make one step; by default one for each worker. With `steps` the loop ends after that many
        steps, and the next such loop over the same data goes on in the same epoch. Leaving the loop by `break` ends the
        job at the last committed version. After the loop the model has the final version of the loop.

        `shuffle` is "full" or "blocks" (shards, and the samples of a few shards at a time), or True for what suits the
        data. `fraction` takes a part of the data, `weights` draw samples with replacement. With
        ``on_bad_record="skip"`` up to `max_bad_records` samples whose content is damaged are left out.
        """
        self._check_open("job.batches")
        if self._loop is None:
            raise UsageError("call job.prepare(model, optimizer) before job.batches(...)")
        number = self._loop.phase + 1
        spec, phase = phase_arguments(
            number,
            data,
            batch_size,
            slots=slots,
            epochs=epochs,
            steps=steps,
            shuffle=shuffle,
            collate_fn=collate_fn,
            drop_last=drop_last,
            loader_workers=loader_workers,
            choice=Choice(fraction, weights, on_bad_record, max_bad_records, self._args.seed),
        )
        if number > 0:
            self._loop.binding.check_untouched()
        batches = SampledBatches(LocalBatches(spec, self._args.seed), self._session)

        def check(number: int) -> None:
            fingerprint = self._data.compare_loop(number, batches.maker, self._validators)
            batches.open(data_key(number, self._args.seed, spec, fingerprint))

        return self._loop.run(phase, batches, check, max(0, spec.max_bad_records))

    def log(self, **values: Any) -> None:
        """Record numbers of this turn, before `optimizer.step()`. The job shows their mean over the step's slots."""
        log_values(self._loop, values)

    def stop(self, reason: str = "stopped by the script") -> None:
        """End the job after the current step, for all workers. Has no effect while `passed` is true."""
        self._check_open("job.stop", in_loop=True)
        at = step_in_hand(self._loop, self.step - 1)
        self._session.ask(lambda req: Stop(req, str(reason), at, passed=self.passed), Ok)

    def stop_when(
        self,
        condition: str | Condition | None = None,
        *,
        patience: int = 0,
        metric: str = "",
        min_delta: float = 0.0,
    ) -> None:
        """End the job at a target ("accuracy>=0.9"), when a function of the metrics is true, or by `patience`.

        The patience is a number of validations without a better value of `metric`, such as "accuracy" or
        "perplexity:min". In lock-step the job ends at the same step in every run. Call it in every worker.
        """
        self._check_open("job.stop_when", in_loop=True)
        self._policies.stop_when(condition, patience=patience, metric=metric, min_delta=min_delta)

    def on_plateau(
        self,
        metric: str = "",
        *,
        patience: int = 3,
        factor: float = 0.5,
        min_delta: float = 0.0,
    ) -> None:
        """Multiply the learning rate by `factor` after each `patience` validations without a better value of `metric`.

        The metric is as in `stop_when`. Call it in every worker.
        """
        self._check_open("job.on_plateau", in_loop=True)
        self._policies.on_plateau(patience, metric, factor=factor, min_delta=min_delta)

    def set(
        self,
        *,
        mode: str | None = None,
        slots: int | None = None,
        lr: float | str | None = None,
        checkpoint_every: int | str | None = None,
    ) -> int:
        """Change dials of the job, for all workers; returns the step from which on they hold.

        `lr` is a rate, or a factor such as "x0.5" of what the script gives. In a loop in lock-step that step is two
        after the current one, if this is called before `optimizer.step()`. Calls with dials that hold already change
        nothing, so every worker may call it. Has no effect while `passed` is true.

        Raises:
            UsageError: a dial cannot have this value; the job goes on as it was.
        """
        self._check_open("job.set", in_loop=True)
        given = {"mode": mode, "slots": slots, "lr": lr, "checkpoint_every": checkpoint_every}
        return set_dials(self._session, given, step_in_hand(self._loop, None), passed=self.passed)

    def save(self, path: str | Path) -> None:
        """Write the model's `state_dict` as safetensors. One worker writes; the others wait for the complete file.

        A save that the job has done before, as in a resumed run, writes nothing. If its file is missing or has other
        weights by now, the job warns of it.

        Raises:
            SaveError: the file cannot be written; the message names it and the cause.
            UsageError: `path` does not end in .safetensors. The weights are not lost: they are written to a file whose
                name is `path` with .safetensors appended, and the message shows how to save and load.
        """
        self._check_open("job.save")
        if self._loop is None:
            raise UsageError("nothing to save: call job.prepare(model, optimizer) first")
        self._saves.save(self._loop.binding.model, Path(path), passed=self.passed)

    def _check_open(self, call: str, *, in_loop: bool = False) -> None:
        """Check that `call` is allowed now. If the script has dropped its loop, end the job, as `break` does."""
        if self._closed:
            raise UsageError("this job is closed: call paceline.join() again")
        self._session.preemption.check()  # a worker that was asked to leave must not end the job
        if self._loop is not None and self._loop.is_looping and not in_loop:
            if not self._loop.is_dropped:
                raise LoopError(in_loop_text(call))
            self._loop.end_job()

    def fail(self, trace: str) -> None:
        """Tell the coordinator that this worker's script raised: the job fails with this traceback.

        Before that, wait a few seconds for a checkpoint of the last commit: the work so far was not wrong.
        """
        if not self._closed:
            save_last(self._session)
            self._session.ask(lambda req: Failed(req, "script", trace), Ok)

    def close(self, *, failed: bool = False) -> None:
        """Leave the job. Idempotent. `paceline run` calls it at the end of the script.

        Raises:
            JobRewoundError: the job was rewound to a point before the current loop of this worker.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._leave(failed)
        except JobRewoundError:
            failed = True
            raise
        except JobError:
            failed = True
        finally:
            self._validators.close()
            if self._loop is not None:
                self._loop.turn.close()
                self._loop.behind.caught_up()
            if self._guard is not None:
                self._guard.remove()
            self._close(failed)

    def _leave(self, failed: bool) -> None:
        if self._session.preemption.requested:
            self._session.leave()
        elif not failed:
            if self._loop is not None:
                self._loop.leave_job()
            self._callbacks.end()
            self._session.ask(Bye, Ok)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            add_remedy(error)
        self.close(failed=error is not None)
