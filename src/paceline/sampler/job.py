"""The job as the script of a sampler sees it: its loops prepare batches for workers and have no turns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from paceline.core.sampler.demand import LEAST
from paceline.core.sampler.preparing import SamplerCore
from paceline.core.sampling import Order
from paceline.data.choice import Choice
from paceline.data.data_key import data_key
from paceline.data.data_spec import Collate, DataSpec
from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.data.seeding import preserved
from paceline.data.servable import servable
from paceline.errors import JobRewoundError, JobStoppedError, UsageError
from paceline.messages import SamplerNews
from paceline.messages.status import BestStatus
from paceline.sampler.desk import Made
from paceline.sampler.service import SamplerService
from paceline.telemetry import tracing
from paceline.types import Segment, SlotId
from paceline.worker.metric_series import Metric
from paceline.worker.metrics import Metrics
from paceline.worker.phase_arguments import phase_arguments
from paceline.worker.script_policies import Condition

M = TypeVar("M", bound=Metric)
F = TypeVar("F", bound=Callable[..., object])
_POLL_S = 0.25
_FINISHED, _FAILED = "finished", "failed"


class IgnoredCallbacks:
    """Has the decorators of `job.callbacks`, and calls nothing."""

    def on_step(self, function: F) -> F:
        """Return `function`."""
        return function

    on_validation = on_checkpoint = on_end = on_step


class SamplerJob(AbstractContextManager["SamplerJob"]):
    """What `paceline.join` returns in a sampler. It has every member of `Job`.

    A loop over `batches` prepares slots until the job has left that loop, and has no turn. The script then goes on as
    that of a worker that comes late: `passed` is true, `evaluate` and `metrics` give what the workers computed, and
    `save`, `stop` and `set` do nothing.
    """

    def __init__(
        self, service: SamplerService, name: str, seed: int, limit_nbytes: int, close: Callable[[], None]
    ) -> None:
        self._service = service
        self._name = name
        self._seed = seed
        self._limit_nbytes = limit_nbytes
        self._close = close
        self._fingerprints = Fingerprints(seed)
        self._phase = -1
        self._validators = 0
        self._prepared = False
        self._closed = False
        self._seen: SamplerNews | None = None

    # ------------------------------------------------------------ what a script sees

    @property
    def step(self) -> int:
        """The number of committed steps at the end of the last loop."""
        return 0 if self._seen is None else self._seen.step

    @property
    def epoch(self) -> int:
        """The epoch at the end of the last loop."""
        return 0 if self._seen is None else self._seen.epoch

    @property
    def passed(self) -> bool:
        """True after a loop: the model does not have the weights of that loop."""
        return self._seen is not None

    @property
    def lead(self) -> bool:
        """False: a worker leads."""
        return False

    @property
    def metrics(self) -> Metrics:
        """The validation results at the end of the last loop."""
        return Metrics({} if self._seen is None else self._seen.metrics, "a sampler sees results only after a loop")

    @property
    def best(self) -> BestStatus | None:
        """None: a sampler saves nothing."""
        return None

    @property
    def callbacks(self) -> IgnoredCallbacks:
        """Decorators that do nothing: workers call the functions."""
        return IgnoredCallbacks()

    def servable(self, factory: Callable[[], torch.nn.Module], example: Any) -> None:
        """Check the arguments, as a worker does."""
        servable(factory, example)

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        clip_norm: float | None = None,
        scheduler_every: str = "step",
    ) -> tuple[Any, ...]:
        """Return the arguments: a sampler trains nothing."""
        self._prepared = True
        return (model, optimizer) if scheduler is None else (model, optimizer, scheduler)

    def validate(self, data: Any, *, every: int, batch_size: int | None = None) -> Callable[[M], M]:
        """Decorate a metric, which the workers compute."""

        def register(metric: M) -> M:
            self._validators += 1
            return metric

        return register

    def evaluate(self, metric: Metric, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Wait for the result that the workers compute, and return it."""
        number, desk = self._validators, self._service.desk
        self._validators += 1
        desk.ask(number)
        try:
            while (news := self._news()) is None or news.result is None:
                desk.wait(_POLL_S)
            return dict(news.result)
        finally:
            desk.ask(-1)

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
        """Prepare the batches of a loop for the workers. Ends without a turn when the job has left that loop."""
        if not self._prepared:
            raise UsageError("call job.prepare(model, optimizer) before job.batches(...)")
        spec, _ = phase_arguments(
            self._phase + 1,
            data,
            batch_size,
            slots=slots,
            epochs=epochs,
            steps=steps,
            shuffle=shuffle,
            collate_fn=collate_fn,
            drop_last=drop_last,
            loader_workers=loader_workers,
            choice=Choice(fraction, weights, on_bad_record, max_bad_records, self._seed),
        )
        return self._loop(spec)

    def log(self, **values: Any) -> None:
        """Do nothing: a sampler computes no turn."""

    def stop(self, reason: str = "stopped by the script") -> None:
        """Do nothing: workers decide when the job ends."""

    def stop_when(
        self,
        condition: str | Condition | None = None,
        *,
        patience: int = 0,
        metric: str = "",
        min_delta: float = 0.0,
    ) -> None:
        """Do nothing: workers decide when the job ends."""

    def on_plateau(
        self,
        metric: str = "",
        *,
        patience: int = 3,
        factor: float = 0.5,
        min_delta: float = 0.0,
    ) -> None:
        """Do nothing: workers change the learning rate."""

    def set(
        self,
        *,
        mode: str | None = None,
        slots: int | None = None,
        lr: float | str | None = None,
        checkpoint_every: int | str | None = None,
    ) -> int:
        """Do nothing; returns the present step."""
        return self.step

    def save(self, path: str | Path) -> None:
        """Do nothing: a worker writes the file."""

    def fail(self, trace: str) -> None:
        """Do nothing: the job goes on without this sampler, and the launcher says why it has ended."""

    def close(self, *, failed: bool = False) -> None:
        """End the sampler. Idempotent."""
        if not self._closed:
            self._closed = True
            self._service.close()
            self._close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    # ------------------------------------------------------------ the loop

    def _loop(self, spec: DataSpec) -> Iterator[Any]:
        self._phase += 1  # here, not in batches(): an iterator that is never used is no loop
        desk, maker = self._service.desk, BatchMaker(spec, self._seed)
        try:
            with preserved():
                fingerprint, _ = self._fingerprints.find(maker)
                key = data_key(self._phase, self._seed, spec, fingerprint)
                least = max(LEAST, maker.capacity + 1)
                desk.open(self._phase, SamplerCore(self._name, key, self._limit_nbytes, least=least))
                Preparation(self._service, maker).run(self._is_over)
        finally:
            desk.close()
            maker.close()
        self._seen = self._news()
        yield from ()

    def _is_over(self) -> bool:
        """Whether the job has left the present loop.

        Raises:
            JobRewoundError: the job is in an earlier loop again.
        """
        news = self._news()
        if news is None:
            return False
        if news.closed < self._phase and news.state != _FINISHED:
            raise JobRewoundError("the job was rewound to before the loop of this sampler")
        return news.closed > self._phase or news.state == _FINISHED

    def _news(self) -> SamplerNews | None:
        news = self._service.desk.news
        if news is not None and news.state == _FAILED:
            raise JobStoppedError("the job has failed")
        return news


class Preparation:
    """Prepares the slots of one loop, in this thread or in its loader processes."""

    def __init__(self, service: SamplerService, maker: BatchMaker) -> None:
        self._desk = service.desk
        self._maker = maker
        self._order = Order(maker.seed, maker.spec.order.upto)
        self._begun: deque[tuple[Segment, SlotId, float]] = deque()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Prepare what the desk asks for until `is_over`."""
        at_once = max(1, self._maker.capacity)
        while not is_over():
            while len(self._begun) < at_once and (task := self._desk.next_slot()) is not None:
                self._begin(*task)
            if self._begun:
                self._finish()
            else:
                self._desk.wait(_POLL_S)

    def _begin(self, segment: Segment, slot: SlotId) -> None:
        self._begun.append((segment, slot, time.monotonic()))
        if self._maker.capacity:
            self._maker.begin(self._order.samples(segment, *slot), *slot)

    def _finish(self) -> None:
        segment, slot, began = self._begun[0]
        with tracing.span("prepare", step=slot.step, slot=slot.slot):
            try:
                if self._maker.capacity:
                    batch = self._maker.finish()
                else:
                    batch = self._maker.make_batch(self._order.samples(segment, *slot), *slot)
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
                return
        self._begun.popleft()
        # The worker that has the lease finds bad records itself: they are noted before its slot is sealed (rule 24).
        bad = f"left out: {batch.bad[0].why}" if batch.bad else ""
        self._desk.put(Made(segment, slot, None if bad else batch.content, time.monotonic() - began, bad))

    def _failed(self, why: str) -> None:
        """Give up what was begun: the data set raised, or a loader process died. Workers prepare these slots."""
        self._maker.close()  # what is left of its requests must not be taken for later ones
        while self._begun:
            segment, slot, _ = self._begun.popleft()
            self._desk.put(Made(segment, slot, error=why))
