"""The script of a worker as a generator: phases, turns, pushes, validation, with random misbehaviour."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from paceline.core.sampling import Order
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
    Grant,
    LeaveOut,
    Message,
    PhaseBegun,
    PhaseOver,
    Prepare,
    Seal,
    Sealed,
    SetDials,
    Stop,
)
from paceline.sim.live import hyper_of
from paceline.sim.symbols import Buffer, Gradient, Reads, mark
from paceline.sim.worker_checks import weight as slot_weight
from paceline.types import INIT_STEP, BadRecord, Kind, NodeId, Segment, Sums

if TYPE_CHECKING:
    from paceline.sim.worker import SimWorker

_HEALED_TURN_S = 0.02


class Ask(NamedTuple):
    """Yielded by a script: send a request, and continue the script with the answer."""

    make: Callable[[int], Message]


class Sleep(NamedTuple):
    """Yielded by a script: continue after a time, in which the script computes."""

    seconds: float


class Ready(NamedTuple):
    """Yielded by a script: continue when the core has a task for it."""


Script = Generator[Ask | Sleep | Ready, Message | None, None]


class TrainingScript:
    """The script of one worker process. All its random choices come from the worker's random generator."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self._cluster = worker.cluster
        self._scenario = worker.scenario
        self._core = worker.core
        self._rng = worker.rng
        self._trained = [b.index for b in worker.blocks if b.kind != Kind.FROZEN]
        self._buffers: dict[int, Buffer] = {}
        self._turns = 0
        self._evaluating = False
        self._told: set[tuple[int, int]] = set()

    def run(self) -> Script:
        """Run the script from its first message to its last."""
        scenario = self._scenario
        yield Ask(lambda req: msgspec.structs.replace(self._core.registration.introduction, req=req))
        yield Ask(lambda req: Prepare(req, scenario.model))
        for validator in scenario.validators:
            if validator.every:
                yield Ask(lambda req, v=validator: Declare(req, v))  # type: ignore[misc]
                self._core.declare(validator.number + 1)
        for phase in scenario.phases:
            begun = yield Ask(lambda req, p=phase: BeginPhase(req, p))  # type: ignore[misc]
            assert isinstance(begun, PhaseBegun)
            if begun.segment is None:  # the job has ended: read its final version, and validate it
                self._worker.send_all(self._core.ask(self._cluster.world.now, phase.number))
                yield from self._loop()
                if isinstance(self._core.task, PhaseOver):
                    self._cluster.worker_checks.phase_ended(
                        self._worker.node, self._core.task, self._worker.reads(), was_there=False
                    )
                break
            self._worker.set_evicted(False)
            joined = len(self._cluster.record.log)
            began = self._cluster.record.incarnation
            self._worker.send_all(self._core.ask(self._cluster.world.now, phase.number))
            yield from self._loop()
            if self._worker.leaving and not isinstance(self._core.task, PhaseOver):
                yield Ask(Bye)  # leaves in the middle of the job, before the pushes of its last turn are acknowledged
                return
            over = self._core.task
            assert isinstance(over, PhaseOver)
            line = self._cluster.record.lines[over.incarnation]
            late = joined > line.phase_versions.get(phase.number, joined) or began != over.incarnation
            self._cluster.worker_checks.phase_ended(
                self._worker.node,
                over,
                self._worker.reads(),
                was_there=self._turns > 0 and not self._worker.evicted and not late,
            )
            if over.finished:
                break
            if scenario.evaluate >= 0:
                yield from self._evaluate(phase.number)
        claimed = yield Ask(lambda req: Claim(req, "save"))
        assert isinstance(claimed, Claimed)
        if claimed.mine:
            self._cluster.saved()
            yield Sleep(0.05)
            yield Ask(lambda req: ClaimDone(req, "save"))
        yield Ask(Bye)
        self._worker.end()

    def _loop(self) -> Script:
        """Run one phase: take turns until the phase has ended."""
        while True:
            yield Ready()
            task = self._core.task
            if isinstance(task, PhaseOver | EvalOver):
                return
            self._turns += 1
            match task:
                case Grant(step=step) if step == INIT_STEP:
                    yield from self._initialise(task)
                case Grant():
                    yield from self._turn(task)
                case EvalGrant():
                    yield from self._validate(task)
            if self._worker.leaving and not self._evaluating:
                return

    def _evaluate(self, phase: int) -> Script:
        validator = self._scenario.validators[self._scenario.evaluate]
        yield Ask(lambda req: Declare(req, validator))
        self._core.declare(validator.number + 1)
        self._evaluating = True
        self._worker.send_all(self._core.ask(self._cluster.world.now, phase, evaluation=self._scenario.evaluate))
        yield from self._loop()
        task = self._core.task
        assert isinstance(task, EvalOver)
        self._evaluating = False

    def _pause(self) -> Sleep:
        mean = self._scenario.habits.mean_turn_s
        if self._scenario.hurries and not self._cluster.faults.on:  # the rest of the job need not take long
            mean = min(mean, _HEALED_TURN_S)
        slowness = self._worker.speed * self._worker.cluster.hosts.slowness(self._worker.host)
        return Sleep(mean * slowness * self._rng.uniform(0.5, 1.5))

    def _initialise(self, task: Grant) -> Script:
        yield self._pause()
        reads = self._worker.reads()
        every = [b.index for b in self._worker.blocks]
        report = self._core.turn.report(1.0, hyper_of(task.step, task.segment), {}, 0.0)
        buffers = {b: Buffer(Gradient(task.step, 0, task.fence, b, 0, reads)) for b in every}
        self._push(task, buffers, 0, report)
        self._worker.send_all(self._core.sealed(self._cluster.world.now, report))

    def _turn(self, task: Grant) -> Script:
        now, habits, rng = self._cluster.world, self._scenario.habits, self._rng
        assert task.segment is not None
        reads, ahead = self._worker.reads(), self._core.model.ahead > 0
        if not self._cluster.log_checks.is_outdated(task.step, task.fence):
            self._cluster.worker_checks.may_compute(task.step, reads, self._worker.node, ahead=ahead)
        calm = not self._cluster.faults.on
        # Interchangeable attempts have the same content; other attempts differ.
        chance = rng
        if self._scenario.model.deterministic and task.segment.window == 0:
            chance = Random(f"slot {self._scenario.seed} {task.step} {task.slot}")
        slot = task.segment, task.step, task.slot
        bad, full = self._bad_samples(*slot), slot_weight(*slot)
        empty = chance.random() < habits.empty or len(bad) >= round(full * task.segment.batch_size)
        present = [b for b in self._trained if chance.random() >= habits.partly_absent]
        # Once all servers have acknowledged the last turn's pushes, no server reads its buffers: they can be reused.
        spare = {} if self._core.transfers.unacked else self._buffers
        self._buffers = {}
        pushed: dict[int, int] = {}
        yield self._pause()
        yield from self._leave_out(task.segment.phase, bad)
        if not empty:
            for block in present:
                self._write(task, spare, block, 0, reads)
            if rng.random() < habits.provisional:
                for block in present:
                    if rng.random() < 0.6:
                        self._push(task, {block: self._buffers[block]}, 0)
                        pushed[block] = 0
                        yield Sleep(self._rng.uniform(0.0, 0.02) * self._worker.speed)
        if not calm and rng.random() < habits.vanish:
            self._cluster.faults.vanish(self._worker)
            yield Sleep(1e9)
        for live in self._scenario.live:
            if live.step == task.step:
                yield Ask(lambda req, live=live: SetDials(req, live.change, task.step, "the script"))  # type: ignore[misc]
        if self._cluster.stops(task.step):
            yield from self._stop(task)
            if self._scenario.stop is not None and self._scenario.stop.at_once:
                return
        if not calm and rng.random() < habits.hand_back:
            self._worker.send_all(self._core.ask(now.now, self._core.turn.phase, abandoned=task.fence))
            return
        weight = 0.0
        if not empty:
            weight = full - len(bad) / task.segment.batch_size
            for block in present:
                if block in pushed and rng.random() < habits.push_again:
                    pushed[block] = 1
                    self._write(task, {}, block, 1, reads)
                    self._push(task, {block: self._buffers[block]}, 1)
        rest = {b: self._buffers[b] for b in present if b not in pushed} if not empty else {}
        revs = {b: pushed.get(b, 0) for b in present} if not empty else {}
        report = self._core.turn.report(weight, hyper_of(task.step, task.segment), {"loss": 1.0}, 0.1)
        self._push(task, rest, 0, report, revs)
        if rng.random() < 0.5:
            self._worker.drain()
        self._worker.send_all(self._core.sealed(now.now, report))
        if not calm and rng.random() < habits.cut_off:
            self._cluster.faults.cut_off(self._worker)

    def _bad_samples(self, segment: Segment, step: int, slot: int) -> list[int]:
        """The samples of a slot whose content is damaged."""
        if not self._scenario.bad:
            return []
        samples = Order(self._scenario.job.seed).samples(segment, step, slot).tolist()
        return [sample for sample in samples if sample in self._scenario.bad]

    def _leave_out(self, phase: int, bad: Sequence[int]) -> Script:
        """Have bad records noted before the slot without them is sealed (rule 24)."""
        if new := [sample for sample in bad if (phase, sample) not in self._told]:
            records = tuple(BadRecord(sample, 1, "damaged") for sample in new)
            yield Ask(lambda req: LeaveOut(req, phase, records, 1000))
            self._told |= {(phase, sample) for sample in new}

    def _stop(self, task: Grant) -> Script:
        plan = self._scenario.stop
        assert plan is not None
        yield Ask(lambda req: Stop(req, "the plan says so", task.step, plan.at_once))
        if plan.at_once:
            self._worker.send_all(self._core.ask(self._cluster.world.now, self._core.turn.phase, abandoned=task.fence))

    def _validate(self, task: EvalGrant) -> Script:
        yield self._pause()
        self._cluster.worker_checks.has_version(self._worker.reads(), task.version, self._worker.node)
        seen = {value.version for value in self._worker.values if value is not None}
        assert seen
        sums = {
            "version": Sums(float(self._worker.versions[0]), 1.0),
            "slots": Sums(2.0**task.slot, 1.0),
        }
        report = Evaluated(task.round, task.slot, task.fence, sums)
        evaluation = self._scenario.evaluate if self._evaluating else -1
        self._worker.send_all(
            self._core.ask(self._cluster.world.now, self._core.turn.phase, evaluated=report, evaluation=evaluation)
        )

    def _write(self, task: Grant, spare: dict[int, Buffer], block: int, rev: int, reads: Reads) -> None:
        content = Gradient(task.step, task.slot, task.fence, block, rev, reads)
        buffer = spare.pop(block, None)
        if buffer is None:
            buffer = Buffer(content)
        buffer.content = content
        self._buffers[block] = buffer

    def _push(
        self,
        task: Grant,
        buffers: dict[int, Buffer],
        rev: int,
        report: Sealed | None = None,
        revs: dict[int, int] | None = None,
    ) -> None:
        """Send gradients to their servers; with a report, seal the slot on every server."""
        parts: dict[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]] = {}
        for server, mine in self._core.model.targets.items():
            here = [b for b in mine if b in buffers]
            seal = None
            if report is not None:
                sealed = dict.fromkeys(here, rev) if revs is None else {b: r for b, r in revs.items() if b in mine}
                seal = Seal(report.weight, (mark(task.step, task.slot, task.fence),), tuple(sealed.items()))
            elif not here:
                continue
            frames = tuple(BlockFrame(b, self._worker.blocks[b].dtype, self._worker.blocks[b].numel, rev) for b in here)
            parts[server] = (frames, tuple(buffers[b] for b in here), seal)
        self._worker.send_all(self._core.push(self._cluster.world.now, parts, report=report))
