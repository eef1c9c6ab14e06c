"""Functions of the script that are called when something has happened: `job.callbacks`.

They run in the worker that leads, between two turns, after its slot was sealed and sent: nothing that they do changes a
commit. One that raises is named in a warning and not called again; one that takes long delays only this worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from paceline.clients.observer import decode_status
from paceline.messages import Ok, StatusReply, StatusRequest, Warn
from paceline.types import Measured
from paceline.worker.metrics import Metrics
from paceline.worker.session import Session

F = TypeVar("F", bound=Callable[..., object])
_LONG_S = 1.0  # a callback that takes longer is named in a warning
_POLL_S = 1.0  # seconds between two questions for a new checkpoint


class Callbacks:
    """Registers functions, as decorators: ``@job.callbacks.on_step``. All workers register the same."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._functions: dict[str, list[Callable[..., object]]] = {}
        self._seen = -1
        self._checkpoint: str | None = None
        self._next_poll = 0.0

    def on_step(self, function: F) -> F:
        """Call ``function(step)`` after each turn of this worker."""
        return self._add("on_step", function)

    def on_validation(self, function: F) -> F:
        """Call ``function(metrics)`` when a result of validation is new to this worker."""
        return self._add("on_validation", function)

    def on_checkpoint(self, function: F) -> F:
        """Call ``function(folder, version)`` when there is a new complete checkpoint; about once a second at most."""
        return self._add("on_checkpoint", function)

    def on_end(self, function: F) -> F:
        """Call ``function(reason)`` when the script leaves the job, after its last loop."""
        return self._add("on_end", function)

    def _add(self, event: str, function: F) -> F:
        self._functions.setdefault(event, []).append(function)
        return function

    # ------------------------------------------------------------ what the loop tells

    def see(self, measured: Mapping[str, Measured], step: int, *, passed: bool) -> None:
        """Note the results that a turn of `step` sees."""
        if not measured or "on_validation" not in self._functions:
            return
        metrics = Metrics(measured)
        if metrics.step > self._seen:
            self._seen = metrics.step
            self._call("on_validation", metrics)

    def turn_ended(self, step: int) -> None:
        """Note that the slot of a turn is sealed and sent."""
        if not self._functions:
            return
        self._call("on_step", step)
        if "on_checkpoint" in self._functions and (now := time.monotonic()) >= self._next_poll:
            self._next_poll = now + _POLL_S
            self._look_for_checkpoint()

    def end(self) -> None:
        """Note that the script leaves the job."""
        if "on_checkpoint" in self._functions:
            self._look_for_checkpoint()
        if "on_end" in self._functions:
            status = decode_status(self._session.ask(StatusRequest, StatusReply))
            self._call("on_end", status.stop_reason or "")

    def _look_for_checkpoint(self) -> None:
        found = decode_status(self._session.ask(StatusRequest, StatusReply)).checkpoint
        if found is not None and found.folder != self._checkpoint:
            self._checkpoint = found.folder
            self._call("on_checkpoint", found.folder, found.version)

    def _call(self, event: str, *arguments: Any) -> None:
        functions = self._functions.get(event, [])
        if not functions or not self._session.core.turn.lead:
            return
        for function in list(functions):
            name, began = getattr(function, "__name__", "a function"), time.monotonic()
            try:
                function(*arguments)
            except Exception as error:
                functions.remove(function)
                why = f"{type(error).__name__}: {error}"
                self._warn(f"{event} {name}", f"job.callbacks.{event}: {name} raised {why}; it is not called again")
            else:
                if (taken := time.monotonic() - began) > _LONG_S:
                    text = f"job.callbacks.{event}: {name} took {taken:.1f} s, and this worker waited for it"
                    self._warn(f"slow {event} {name}", text)

    def _warn(self, topic: str, text: str) -> None:
        self._session.ask(lambda req: Warn(req, topic, text), Ok)
