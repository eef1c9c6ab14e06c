"""One turn: a pass of the script's loop body on one leased slot, which `optimizer.step()` seals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paceline.errors import LoopError
from paceline.messages import NOT_FINITE, Grant
from paceline.reducers.base import Made, Reducer
from paceline.telemetry import tracing
from paceline.types import Hyper, Kind, Segment
from paceline.worker.binding import Binding
from paceline.worker.earlier_graph import TEXT, next_number, reaches_before
from paceline.worker.gradient_check import GradientCheck
from paceline.worker.hyperparameters import LearningRates
from paceline.worker.last_sealed_turn import SealedTurn
from paceline.worker.loop_hint import line_to_write
from paceline.worker.overlap import Overlap
from paceline.worker.scheduler_replay import SchedulerReplay
from paceline.worker.session import Session

SendAhead = Callable[[int, Iterable[str]], bool]
"""``f(nbytes, addresses)``: whether to send gradients of `nbytes` to servers at `addresses` while backward runs."""


class ScriptTurn:
    """The current turn of a script, and the last sealed one. Only its methods change it.

    `grant` is the lease of the turn, or of the turn before until the next one begins; None outside of loops.
    """

    def __init__(self, session: Session, binding: Binding, replay: SchedulerReplay | None, reducer: Reducer) -> None:
        self.grant: Grant | None = None
        self.is_sealed = False
        self._session = session
        self._binding = binding
        self._replay = replay
        self._reducer = reducer
        self._check = GradientCheck(binding.spec.tensors)
        self._overlap: Overlap | None = None
        self._last: SealedTurn | None = None
        self._kept: SealedTurn | None = None
        self._logged: dict[str, Any] = {}
        self._warnings: dict[str, str] = {}
        self._turns = 0  # of the current loop
        self._first_node: int | None = None
        self._version = -1
        self._weight = 1.0
        self._waited = 0.0
        self._began = 0.0
        self._computing = tracing.span("forward+backward")
        self._hyper_before: Hyper = ()
        self._rates = LearningRates()

    @property
    def is_open(self) -> bool:
        """Whether the script is in its loop body and has not sealed yet."""
        return self.grant is not None and not self.is_sealed

    # ------------------------------------------------------------ from the first line to the last

    def begin(self, grant: Grant, num_samples: int, waited: float = 0.0) -> None:
        """Begin the turn of `grant` with a batch of `num_samples`, for which the script `waited` so many seconds.

        The model must have the state that `grant` needs.
        """
        assert grant.segment is not None
        model = self._session.core.model
        # The step of the last turn is not committed if this turn reads ahead of its commit. If blocks move before the
        # commit, the last turn is sealed again.
        self._kept = self._last if model.ahead else None
        self.grant, self.is_sealed, self._last = grant, False, None
        self._warnings = {}
        if self._replay is not None:
            self._replay.begin_step(grant.segment, grant.step)
            if text := self._replay.warning(grant.segment):
                self.warn("schedule", text)
        self._binding.begin_turn()
        self._version = model.version
        self._logged = {}
        self._waited = waited
        self._weight = num_samples / grant.segment.batch_size
        self._reducer.begin(grant, self._weight, keep=self._kept is not None)
        if self._overlap is not None:
            self._overlap.begin()
        self._hyper_before = self._binding.hyper()
        self._turns += 1
        # Two turns show whether the loop carries state. To look at each turn would cost too much.
        self._first_node = next_number() if self._turns in (2, 3) and self._binding.on_cpu else None
        self._began = time.monotonic()
        self._computing = tracing.span("forward+backward", step=grant.step, slot=grant.slot)

    def compute(self) -> None:
        """Begin to measure the script's own time: everything is prepared, and the loop body follows."""
        self._computing.__enter__()

    def log(self, name: str, value: Any) -> None:
        """Note a value that is reported with the sealed slot: a number, or a tensor with one element."""
        if isinstance(value, torch.Tensor):
            if self._first_node is not None and reaches_before(value, self._first_node):
                self.warn("state", f"{name} {TEXT}")
            value = value.detach()
        self._logged[name] = value

    def warn(self, topic: str, text: str) -> None:
        """Send `text` to the user with the seal of this turn. The job shows the first warning of each topic."""
        self._warnings[topic] = text

    def seal(self, skipped: bool) -> None:
        """`optimizer.step()`: hand the gradients over, report the slot, ask for the next one. Never waits.

        Raises:
            LoopError: `step()` was called outside of a turn or twice in it, or the loop wrote to parameters.
        """
        grant = self.grant
        if grant is None:
            raise LoopError(
                f"optimizer.step() outside of a turn: the job hands out the batches. Write `{line_to_write()}`"
            )
        if self.is_sealed:
            raise LoopError("two optimizer.step() calls in one turn: a turn is one slot, and step() seals it")
        self._computing.__exit__(None, None, None)
        self._binding.check_untouched()
        # A worker that is asked to leave sends both the gradients and the report, or neither.
        with tracing.span("push", step=grant.step), self._session.preemption:
            made = None if skipped else self._binding.made()
            if made is not None:
                self._check_gradients(grant, made)
            logs = {name: float(value) for name, value in self._logged.items()}
            numbers = (
                0.0 if made is None else self._weight,
                self._rates.of(self._binding.hyper(), grant.segment),
                logs,
                time.monotonic() - self._began,
                self._warnings,
                self._waited,
            )
            core = self._session.core
            report = core.turn.report(*numbers)
            self._session.drain()  # the lease of the next turn may have come
            with self._session.joined():
                self._reducer.seal(made, report)
                self.is_sealed = True
                version = self._version if core.model.version == self._version else -1
                self._last = SealedTurn(grant, version, core.model.ahead, *numbers)
                self._session.say(core.sealed(time.monotonic(), report))
        if self._overlap is not None:
            self._overlap.end()

    def _check_gradients(self, grant: Grant, made: Made) -> None:
        name = self._check.find(made.values, grant.step * grant.slots + grant.slot)
        if name is not None:
            self.warn(NOT_FINITE, f"the gradient of {name} is not finite")

    def end(self) -> None:
        """Check the turn at the end of the loop body, and seal it empty if it made no gradient.

        Raises:
            LoopError: the loop body made gradients and did not call `step()`, or changed weights or hyper-parameters.
        """
        if self.is_sealed:
            self._check_scheduler()
            self._binding.check_untouched()
            self._binding.drop_gradients()  # now, while the servers work: it takes time to free large gradients
            return
        if self._binding.has_gradient:
            raise LoopError(
                "this turn has gradients but no optimizer.step(). Paceline accumulates for you: use slots= for the "
                "number of micro-batches in a step, and call step() in every turn"
            )
        self.seal(True)

    def _check_scheduler(self) -> None:
        if self._replay is not None or self._binding.hyper() == self._hyper_before:
            return
        if any("initial_lr" in group for group in self._binding.optimizer.param_groups):
            raise LoopError(
                "a scheduler changed the hyper-parameters in the loop, by this worker's turns instead of the job's "
                "steps: pass it to job.prepare(model, optimizer, scheduler) and remove scheduler.step()"
            )

    # ------------------------------------------------------------ a slot that is leased again

    def was_computed(self, grant: Grant) -> bool:
        """Whether a sealed turn that is still known is of the slot of `grant`."""
        return any(turn is not None and turn.is_of(grant) for turn in (self._last, self._kept))

    def seal_again(self, grant: Grant) -> bool:
        """Push and report a sealed turn again, for lease `grant`. False if the slot must be computed (again)."""
        core = self._session.core
        for turn in (self._last, self._kept):
            model = core.model
            if turn is None or not turn.is_of(grant):
                continue
            if not turn.counts_on(model.version, model.epoch, model.proven):
                continue
            with tracing.span("push", step=grant.step, again=True), self._session.preemption:
                report = core.turn.report(*turn.report)
                self._reducer.seal_again(report, kept=turn is self._kept)
                self._session.say(core.sealed(time.monotonic(), report))
            return True
        return False

    def seal_initial(self, grant: Grant) -> None:
        """Push the present weights as version 0 and seal the initial lease."""
        with self._session.preemption:
            report = self._session.core.turn.report(1.0, (), {}, 0.0)
            self._reducer.begin(grant, 1.0)
            self._reducer.seal(self._binding.initial(), report)
            self._session.say(self._session.core.sealed(time.monotonic(), report))

    # ------------------------------------------------------------ around the loop

    def watch_gradients(self, send_ahead: SendAhead) -> None:
        """Push gradients while backward runs from now on, if `send_ahead` says that it pays."""
        placement = self._session.core.model.placement
        if self._overlap is not None or not self._binding.on_cpu:
            return
        nbytes = sum(b.nbytes for b in self._binding.blocks if b.kind == Kind.PARAMETER)
        if send_ahead(nbytes, () if placement is None else placement.addresses.values()):
            self._overlap = Overlap(self._binding, self._reducer, lambda: self.is_open)

    def leave(self, segment: Segment | None, step: int) -> None:
        """Note that the loop over `segment` has ended at `step`. None: the job had ended before the loop."""
        self.grant = None
        self._turns = 0
        if self._replay is not None:
            self._replay.begin_step(segment, step)

    def close(self) -> None:
        """Remove the hooks on the script's gradients."""
        if self._overlap is not None:
            self._overlap.close()
