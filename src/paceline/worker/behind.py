"""Whether a worker is behind the job: at the end of a loop whose last version the servers have released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CALLED = (
    "{worker} called the model after its loop number {loop}, which the job had finished before {worker} came to it "
    "(the worker was restarted or joined late, or the run was resumed). The model does not have the weights of that "
    "loop there, so what the script measures by itself is wrong. Validate with @job.validate or job.evaluate, which "
    "give the results of then, or skip the code while job.passed is true"
)
_LEFT = (
    "the script of {worker} ended after its loop number {loop}, but the job is in a later loop: {worker} has left, and "
    "the job goes on without it. The script must decide by what is the same in every worker and after a restart: "
    "job.metrics, or the result of job.evaluate"
)


class Behind:
    """Whether this worker is behind the job. While it is, a call of `model` in the script gives a warning.

    `warn` gets the topic and the text of a warning. The model is watched only while the worker is behind.
    """

    def __init__(self, worker: str, model: torch.nn.Module, warn: Callable[[str, str], None]) -> None:
        self.is_behind = False
        self._worker = worker
        self._model = model
        self._warn = warn
        self._loop = 0
        self._hook: Any = None
        self._validating = False
        self._warned = False

    def passed(self, loop: int) -> None:
        """Note that the worker has passed loop number `loop`, counted from 0: the job is in a later one."""
        self.is_behind, self._loop = True, loop
        # A ScriptModule takes no hooks.
        if self._hook is None and not self._warned and not isinstance(self._model, torch.jit.ScriptModule):
            self._hook = self._model.register_forward_pre_hook(self._called)

    def caught_up(self) -> None:
        """Note that the model has the state in which the job is now."""
        self.is_behind = False
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Inside the block the job itself calls the model: it has the version that is validated."""
        self._validating = True
        try:
            yield
        finally:
            self._validating = False

    def _called(self, module: torch.nn.Module, arguments: Any) -> None:
        if not self._validating and not self._warned:
            self._warned = True
            self._warn("passed loop", _CALLED.format(worker=self._worker, loop=self._loop + 1))

    def leave(self) -> None:
        """Warn that the script has ended before it came to the loop in which the job is."""
        self._warn("passed end", _LEFT.format(worker=self._worker, loop=self._loop + 1))
