"""Live dials: changes of mode, slots, learning rate and checkpoints while the job runs. Rules 8 and 19.

A change holds from the first step on of which nothing is leased. It is a durable segment before anyone computes by it.
"""

from __future__ import annotations

from msgspec.structs import replace

from paceline.config.dials import Mode, parse_mode
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, StepCommitted
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import History, Send
from paceline.core.live_plan import Dials
from paceline.core.policies.slots_auto import choose_slots
from paceline.messages import DialsSet, Message, Position, Refused, SetDials
from paceline.types import UNLIMITED, DialChange, NodeId

_AUTO_STEPS = 20  # steps between two decisions on `--slots auto`


class LiveDials:
    """Decides from which step on a change of dials holds. Requests wait for the term after a restart (rule 19)."""

    def __init__(self, tables: Tables, segments: Segments) -> None:
        self._clock = tables.clock
        self._gate = tables.gate
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._speeds = tables.speeds
        self._segments = segments
        self._waiting: dict[NodeId, SetDials] = {}

    def restore(self, history: History) -> list[Output]:
        """Do nothing: changes are part of the plan, which `Segments` restores."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: requests that wait are decided in the new incarnation."""
        return []

    # ------------------------------------------------------------ requests

    def set(self, sender: NodeId, message: SetDials) -> list[Output]:
        """Change dials, now or when the reports after a restart of the coordinator are in."""
        if self._is_quiet():
            self._waiting[sender] = message
            return []
        return self._decide(sender, message)

    def tick(self) -> list[Output]:
        """Decide the requests that waited for the term after a restart."""
        if not self._waiting or self._is_quiet():
            return []
        waiting, self._waiting = self._waiting, {}
        return [output for sender, message in waiting.items() for output in self._decide(sender, message)]

    def _is_quiet(self) -> bool:
        return self._members.are_awaited(self._incarnation, self._clock.now)

    def _decide(self, sender: NodeId, message: SetDials) -> list[Output]:
        problem = self._refusal()
        if problem:
            return [Send(sender, Refused(message.req, "dials", problem))]
        step = self._first_step(message)
        if message.passed:
            return [Send(sender, DialsSet(message.req, step, DialChange()))]
        assert self._identity.job is not None
        dials = self._phases.dials(step, self._identity.job)
        change = self._news(message.change, dials, step)
        problem = self._misfit(message.change, dials, step)
        if problem:
            return [Send(sender, Refused(message.req, "dials", problem))]
        reply: Message = DialsSet(message.req, step, change)
        if change == DialChange():
            return [Send(sender, reply)]
        return [*self._segments.change(step, change, message.reason), Send(sender, reply)]

    def _refusal(self) -> str:
        """Why no dial can be changed now; "" if one can be."""
        if self._identity.failure is not None:
            return "the job has failed"
        if self._segments.finished:
            return "the job is finished: its dials change nothing any more"
        if self._identity.job is None:
            return "no worker has joined the job yet: try again in a moment"
        return ""

    def _first_step(self, message: SetDials) -> int:
        """The first step that a change can hold for.

        In lock-step the workers of a step, and of the next one at most, have leases while a script computes: two steps
        after that of the caller is the same step in every run.
        """
        free, phase = self._first_free_step, self._phases.open
        if phase is None or message.step < phase.start or self._phases.schedule.window(message.step):
            return free
        return max(free, min(message.step + 2, phase.end))

    @property
    def _first_free_step(self) -> int:
        """The first step above everything that is leased, reported or committed: the first that may get other dials."""
        low, above = self._log.watermark.low, self._log.watermark.above
        return max(low, self._leases.first_free_step, *(step + 1 for step in (*above[-1:], *self._gate.steps())))

    def _misfit(self, change: DialChange, dials: Dials, step: int) -> str:
        """Why `change` does not fit the job from `step` on; "" if it does."""
        limit = self._segments.limit
        if self._segments.stop_reason is not None and limit is not None and step >= limit:
            return f"the job stops before step {limit}, and all steps before are leased"
        if change.mode and (problem := self._misfit_of_reducer(parse_mode(change.mode))):
            return problem
        if not change.slots:
            return ""
        if (parse_mode(change.mode) if change.mode else dials.mode).window == UNLIMITED:
            return "slots= does not fit asp, whose steps wait for nothing: set mode=bsp or mode=ssp:K with it"
        assert self._identity.job is not None
        if self._identity.job.slots_auto:
            return "the run was started with --slots auto, so it chooses its slots itself"
        return ""

    def _misfit_of_reducer(self, mode: Mode) -> str:
        """Why the run cannot have the reducer of `mode`; "" if it can."""
        if mode.in_group and not self._identity.spec.collective:
            return (
                "allreduce needs workers that can hold the model, and gradients go between them unprotected: end the "
                "run, and resume it with --insecure-collective if you trust the network and the users of these machines"
            )
        if not mode.in_group and not self._members.wanted_servers:
            return f"mode {mode.name} needs servers, and the run has none: start some with `paceline scale --servers 1`"
        return ""

    def _news(self, change: DialChange, dials: Dials, step: int) -> DialChange:
        """What of `change` is not so already from `step` on: a later change of the same dial is taken back."""
        later = [known.change for known in self._phases.changes if known.step > step]
        if change.mode == dials.mode.name and not any(other.mode for other in later):
            change = replace(change, mode="")
        if change.slots == dials.slots and not change.mode and not any(other.mode or other.slots for other in later):
            change = replace(change, slots=0)
        rates = any(other.lr or other.lr_scale for other in later)
        if (change.lr, change.lr_scale or 1.0) == (dials.lr, dials.lr_scale) and not rates:
            change = replace(change, lr=0.0, lr_scale=0.0)
        spec = self._identity.spec
        every = self._phases.checkpoints(step) or (spec.checkpoint_steps, spec.checkpoint_s)
        if (change.checkpoint_steps, change.checkpoint_s) == every and not any(c.checkpoint_steps >= 0 for c in later):
            change = replace(change, checkpoint_steps=-1, checkpoint_s=-1.0)
        return change

    def scale_rate(self, factor: float, reason: str, step: int | None) -> list[Output]:
        """Multiply the learning rate by `factor` from `step` on; None, or with a window: from the first step that can.

        A policy decides the same again after a rewind, for the same reason: what the plan has is not done twice.
        """
        job, free = self._identity.job, self._first_free_step
        known = any(change.reason == reason for change in self._phases.changes)
        if job is None or known or self._refusal():
            return []
        at = free if step is None else max(step, free)
        dials = self._phases.dials(at, job)
        change = DialChange(lr=dials.lr * factor) if dials.lr else DialChange(lr_scale=dials.lr_scale * factor)
        return self._segments.change(at, change, reason)

    # ------------------------------------------------------------ slots auto

    def committed(self, event: StepCommitted) -> list[Output]:
        """With `--slots auto`, choose the slots anew from time to time, by the measured speeds of all workers."""
        job = self._identity.job
        if job is None or not job.slots_auto:
            return []
        version = event.commit.version
        if version < 1 or version % _AUTO_STEPS:
            return []
        step, phase = self._first_free_step, self._phases.open
        if phase is None or step >= phase.end or self._refusal() or self._is_quiet():
            return []
        dials = self._phases.dials(step, job)
        workers = self._members.active_workers()
        measured = {m.name: s for m in workers if (s := self._speeds.seconds_of(m.node)) is not None}
        if dials.mode.window or len(measured) < len(workers):
            return []
        choice = choose_slots(measured, dials.slots)
        if choice is None or choice.slots == dials.slots:
            return []
        return self._segments.change(step, DialChange(slots=choice.slots), choice.reason)
