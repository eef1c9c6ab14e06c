"""Changes of a run's shape: workers that join and leave, more or fewer servers, another mode."""

from __future__ import annotations

import signal
import time

from paceline.errors import TransportError
from paceline.testing.chaos.plan import Kind, Planned
from paceline.testing.chaos.run import Stuck
from paceline.testing.chaos.target import Target

_MODES = ("bsp", "ssp:2", "asp")
_MAX_EXTRA = 2  # at most this many joined workers beside the run's own; with one more, the oldest leaves


class ShapeFaults:
    """Changes the number of workers or servers of one run, or its mode, and waits until the run has recovered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._figures = target.figures

    def join(self, planned: Planned) -> None:
        """Start one more worker by `paceline join`."""
        before = self._target.status()
        at = time.monotonic()
        self._run.join(extra=True)
        self._figures.fire(planned.fault)
        self._target.wait(self._target.recovering(planned.fault, at, before))
        if len(self._run.joiners) > _MAX_EXTRA and self._run.workers > self._run.spec.workers:
            self._dismiss()

    def set_mode(self, planned: Planned) -> None:
        """Change the mode of the run, and wait for the commit of a step that has it."""
        seen = self._target.status()
        others = [mode for mode in _MODES if mode != seen.mode]
        mode = others[int(planned.draw * len(others))]
        try:
            step = self._run.set_mode(mode)
        except TransportError as error:
            raise Stuck(f"the run did not accept mode {mode}: {error}") from None
        self._figures.fire(planned.fault)
        self._run.until(lambda seen: seen.step > step, f"the commit of step {step}, the first in mode {mode}")

    def _dismiss(self) -> None:
        """Make the oldest joined worker leave, as Ctrl-C in its terminal does."""
        joiner = self._run.dismiss()
        joiner.process.send_signal(signal.SIGINT)
        if joiner.wait(self._run.spec.deadline_s) is None:
            joiner.end()
            raise Stuck(f"`paceline join` did not end after Ctrl-C; see {joiner.out}")
        self._figures.fire("leave worker")
        self._run.until_whole()

    def scale(self, planned: Planned) -> None:
        """Add or remove one server: blocks move while the run continues."""
        adds = planned.fault.kind == Kind.ADD
        before = self._target.status()
        at = time.monotonic()
        try:
            self._run.scale(self._run.servers + (1 if adds else -1))
        except TransportError as error:
            raise Stuck(f"the run did not accept the request for {self._run.servers} servers: {error}") from None
        self._figures.fire(planned.fault)
        recovery = self._target.recovering(planned.fault, at, before, new=adds)
        self._target.wait(recovery)
        self._figures.paused(str(planned.fault), recovery.pause_s)
