"""The queue of one model: requests wait in a `Batcher`; batches are computed in a thread, or short ones at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from paceline.core.predict.batching import Batcher, BatchLimits
from paceline.errors import RequestError
from paceline.predict.arrays import Arrays
from paceline.predict.models import Loaded, Model
from paceline.predict.protocol import InferRequest

_AT_ONCE_S = 0.003
"""A batch that takes no longer is computed in the event loop: to hand it to a thread costs more than others wait."""


class Answer(NamedTuple):
    """The outputs of one request, and the version that computed all of them."""

    outputs: Arrays
    loaded: Loaded


class _Pending(NamedTuple):
    request: InferRequest
    label: str
    answer: asyncio.Future[Answer]


class ModelQueue:
    """Answers requests of one model. Use it from one event loop.

    `on_batch` is told the rows and the seconds of each batch.
    """

    def __init__(
        self, model: Model, limits: BatchLimits, executor: Executor, on_batch: Callable[[int, float], None]
    ) -> None:
        self.model = model
        self._batcher = Batcher(limits)
        self._executor = executor
        self._on_batch = on_batch
        self._pending: dict[int, _Pending] = {}
        self._next = 0
        self._computing = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_soon = False

    @property
    def queued_rows(self) -> int:
        """How many rows wait."""
        return self._batcher.queued_rows

    async def ask(self, request: InferRequest, label: str) -> Answer:
        """The answer to a request, by the version `label` ("": the current one).

        Raises:
            RequestError: the queue is full (429), the request waited too long (503), or the model raised (400).
        """
        self.model.version(label)
        loop = asyncio.get_running_loop()
        ticket, self._next = self._next, self._next + 1
        kind: Hashable = (label, request.kind) if self.model.signature.batched else ticket
        self._batcher.offer(ticket, request.rows, kind, time.monotonic())
        answer: asyncio.Future[Answer] = loop.create_future()
        self._pending[ticket] = _Pending(request, label, answer)
        self._soon(loop)
        try:
            return await answer
        finally:
            if self._pending.pop(ticket, None) is not None:
                self._batcher.withdraw(ticket)

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look for a batch after the callbacks that are ready now: they may bring more requests."""
        if not self._computing and not self._due_soon:
            self._due_soon = True
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._due_soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._computing:
            return
        now = time.monotonic()
        for ticket in self._batcher.expire(now):
            late = RequestError(
                503, "the request waited for longer than its deadline", retry_after_s=self._batcher.wait_s
            )
            self._settle(self._pending.pop(ticket), late)
        tickets = self._batcher.take(now)
        loop = asyncio.get_running_loop()
        if not tickets:
            if (due := self._batcher.due()) is not None:
                self._timer = loop.call_later(max(0.0, due - now), self._begin)
            return
        batch = [self._pending.pop(ticket) for ticket in tickets]
        if self._batcher.expected_s(sum(one.request.rows for one in batch)) <= _AT_ONCE_S:
            self._answer(batch, self._compute(batch))
            if len(self._batcher):
                self._soon(loop)
            return
        self._computing = True
        task = loop.run_in_executor(self._executor, self._compute, batch)
        task.add_done_callback(lambda done: self._end(batch, done))

    def _compute(self, batch: list[_Pending]) -> list[Answer | Exception]:
        """Compute a batch, in the thread. If the model raises, each request alone, so that others do not fail, too."""
        began = time.monotonic()
        try:
            found: list[Answer | Exception] = list(self._together(batch[0].label, [one.request for one in batch]))
        except Exception as error:
            if len(batch) == 1:
                return [_refused(error)]
            return [answer for one in batch for answer in self._compute([one])]
        self._note(sum(one.request.rows for one in batch), time.monotonic() - began)
        return found

    def _together(self, label: str, requests: list[InferRequest]) -> list[Answer]:
        """Compute the rows of several requests at once, by one version, and divide the outputs again."""
        batched = self.model.signature.batched
        # Also for one request: its arrays may be read-only, which torch does not take.
        joined: dict[str, Any] = {
            name: np.concatenate([request.inputs[name] for request in requests]) if batched else np.array(array)
            for name, array in requests[0].inputs.items()
        }
        while True:
            loaded = self.model.version(label)
            outputs = loaded.compute(joined)
            if outputs is not None:  # otherwise another version has taken its place in this moment
                break
        if not batched:
            return [Answer(outputs, loaded)]
        answers, first = [], 0
        for request in requests:
            last = first + request.rows
            answers.append(Answer({name: array[first:last] for name, array in outputs.items()}, loaded))
            first = last
        return answers

    def _note(self, rows: int, seconds: float) -> None:
        self._batcher.computed(rows, seconds)
        self._on_batch(rows, seconds)

    def _end(self, batch: list[_Pending], done: asyncio.Future[list[Answer | Exception]]) -> None:
        self._computing = False
        answers: list[Answer | Exception]
        if done.cancelled():
            answers = [RequestError(503, "the server ends")] * len(batch)
        elif (error := done.exception()) is not None:
            answers = [_refused(error)] * len(batch)
        else:
            answers = done.result()
        self._answer(batch, answers)
        if len(self._batcher):
            self._begin()

    def _answer(self, batch: list[_Pending], answers: list[Answer | Exception]) -> None:
        for pending, answer in zip(batch, answers, strict=True):
            self._settle(pending, answer)

    @staticmethod
    def _settle(pending: _Pending, answer: Answer | Exception) -> None:
        if pending.answer.done():  # the client is gone
            return
        if isinstance(answer, Exception):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)


def _refused(error: BaseException) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MemoryError):
        return RequestError(503, "there is not enough memory for this request", retry_after_s=5.0)
    return RequestError(400, f"the model raised on this input: {type(error).__name__}: {str(error)[:300]}")
