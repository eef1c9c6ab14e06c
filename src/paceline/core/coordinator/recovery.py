"""Going on after a death: a coordinator that starts again, and a job that goes back to a checkpoint.

What is durable is in `History`; what is not (leases, seals, readiness) is told again by its holders. Rules 5 to 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.checkpoints import Keeping
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.gate import Gate
from paceline.core.coordinator.membership import Member
from paceline.core.coordinator.phases import Phase, PhaseBook
from paceline.core.coordinator.pins import PinBook
from paceline.core.effects import (
    ChoiceFact,
    ClaimFact,
    Effect,
    FactRow,
    History,
    IncarnationFact,
    JobFact,
    ModelFact,
    PhaseFact,
    PlacementFact,
    ScaleFact,
    Send,
    StopFact,
    ValidatorFact,
    Write,
)
from paceline.core.layout import cut
from paceline.core.segments import Schedule
from paceline.core.window import Watermark
from paceline.messages import Abort, Checkpoint, NotLoaded, Position, Register, SaveOver
from paceline.types import INIT_STEP, NodeId, SlotId, name_of

RESUMED = "resumed"
"""Why an incarnation began, where nobody was lost while the job ran."""


class Recovery:
    """Restores the books, and takes them back."""

    def __init__(self, books: Books, commits: Commits, keeping: Keeping) -> None:
        """`lose` lets go of a worker, which is no loss, `forget` of what anyone waits for; the roster sets both."""
        self._job = books
        self._commits = commits
        self._keeping = keeping
        self.lose: Callable[[NodeId], list[Effect]] = lambda node: []
        self.forget: Callable[[], None] = lambda: None
        self._heard: dict[NodeId, tuple[int, frozenset[int]]] = {}
        self._validated: set[tuple[int, int]] = set()

    # ------------------------------------------------------------ a coordinator starts again

    def restore(self, history: History) -> None:
        """Take over what an earlier coordinator wrote. Those who hold blocks and leases are heard next."""
        job = self._job
        for row in history.facts:
            self._learn(row)
        job.incarnation = history.incarnation
        began = [r.fact for r in history.facts if isinstance(r.fact, IncarnationFact)]
        base = began[-1] if began else None
        position = None if base is None else base.position
        if base is not None and position is not None:
            job.base = Checkpoint(base.folder, position)
        self._take(position)
        for row in history.facts:
            if row.incarnation == job.incarnation:
                self._replay(row)
        job.version = history.version
        job.watermark = Watermark(history.watermark, history.above)
        job.log = deque(history.tail)
        job.totals.samples += history.samples
        job.totals.skipped_slots += history.empty
        job.totals.max_staleness, job.totals.max_lag = history.max_staleness, history.max_lag
        job.logs |= history.logs
        for evaluation in history.evaluations:
            self._validated.add((evaluation.validator, evaluation.version))
            known = job.evaluations.latest.get(evaluation.validator)
            if known is None or known[0] < evaluation.version:  # rounds may end in another order than they began
                job.evaluations.latest[evaluation.validator] = (evaluation.version, dict(evaluation.values))
        self._close_phases()
        self._recall_metrics(history)
        self._begin_leasing()
        newest = job.checkpoint
        self._keeping.restart(-1 if newest is None else newest.position.version, soon=True)
        job.restored = bool(history.facts)
        if history.facts:
            self._await_owners()

    def _recall_metrics(self, history: History) -> None:
        """What those were told who left phases: all but the last one, and that too if it was validated to its end."""
        evaluations, base = self._job.evaluations, self._job.base
        results = [] if base is None else list(base.position.results)
        results += [(row.validator, row.version, row.values) for row in history.evaluations]
        phases = self._job.phases.phases
        for phase in phases:
            end = phase.end_version
            if phase.metrics is not None or end is None:
                continue
            due = evaluations.due(end, last=True) if phase is phases[-1] else ()
            if all((validator.number, end) in self._validated for validator in due):
                phase.metrics = evaluations.metrics_at(end, results)

    def _learn(self, row: FactRow) -> None:
        """Facts that a rewind does not undo."""
        job = self._job
        match row.fact:
            case JobFact(job=args):
                job.job = args
            case ModelFact(model=model):
                job.model, job.blocks = model, cut(model.tensors)
            case PlacementFact(placement=placement, failover=failover):
                job.epoch = max(job.epoch, placement.epoch)
                job.failovers += failover
            case ValidatorFact(validator=validator):
                if validator.number == len(job.evaluations.validators):
                    job.evaluations.validators.append(validator)
            case StopFact(reason=reason, step=step):
                job.stop_reason, job.limit = job.stop_reason or reason, step
            case ScaleFact(workers=workers, servers=servers):
                job.wanted_workers = workers or job.wanted_workers
                job.wanted_servers = servers or job.wanted_servers
            case IncarnationFact(position=position, why=why):
                if why != RESUMED:
                    job.rewinds += 1
                job.recomputed += _steps_between(row.version, position)

    def _replay(self, row: FactRow) -> None:
        """Facts of this incarnation."""
        job = self._job
        match row.fact:
            case PlacementFact(placement=placement):
                if job.placement is not None and placement.epoch > job.placement.epoch:
                    job.gate = Gate()  # what was chosen before is void
                job.place(placement)
            case PhaseFact(spec=spec, segment=segment):
                job.schedule.append(segment)
                job.phases.phases.append(Phase(spec, segment, segment.end_step))
            case ChoiceFact(sealed=sealed):
                job.gate.decide(sealed)
            case ClaimFact(key=key):
                job.claims.restart((*job.claims.finished, key))

    def _close_phases(self) -> None:
        job = self._job
        for phase in job.phases.phases[:-1]:
            if phase.end_version is None:
                phase.end_version = phase.end  # every step below is one version, and nothing above had begun
        for step in job.gate.steps():
            if job.watermark.has(step):
                job.gate.forget(step)
        self._settle()

    def _settle(self) -> None:
        """Whether the job is to end here, and whether it has. Whom that concerns is told when blocks are placed."""
        job = self._job
        job.limit_phase()
        if job.stop_reason is not None and job.phases.open is None and job.version >= 0 and job.is_at_limit():
            job.state, job.final = "finished", job.version
        self._commits.end_phase_if_done()
        if job.state == "finished":
            for step in list(job.gate.steps()):
                job.gate.forget(step)  # choices on steps that the job ended without

    def _begin_leasing(self) -> None:
        job = self._job
        job.leases = job.new_leases(job.leases.counter)
        if job.version >= 0:
            job.leases.start_at(job.watermark.low)
        if job.version >= 0 and job.state != "finished":
            job.state = "running"

    def _await_owners(self) -> None:
        """Servers that hold the blocks, and workers, have a full term to say so."""
        job = self._job
        job.quiet_until = job.now + job.spec.grace_s
        job.term_until = job.now + job.spec.heartbeat_timeout_s
        if job.placement is None:  # it died between a rewind and the placement that follows
            self._reopen([job.version])
            return
        job.awaited = set(job.holders)
        for node, address in job.placement.addresses.items():
            name = name_of(node)
            job.members.add(Member(node, "server", name, 0, "", address, job.now, job.now))

    def heard(self, server: NodeId, message: Register) -> list[Effect]:
        """A server of the placement speaks to this coordinator for the first time."""
        job = self._job
        effects, applied = self._orient(server, message)
        if server not in job.awaited:
            return effects + self._catch_up(server, applied)
        job.awaited.discard(server)
        # One that has not heard of a rewind yet speaks of versions that are no more.
        self._heard[server] = applied, frozenset(message.kept if message.incarnation == job.incarnation else ())
        return effects if job.awaited else effects + self._all_heard()

    def gone(self, server: NodeId) -> list[Effect]:
        """A server is lost, and others have its blocks: it is not awaited any longer."""
        job = self._job
        self._heard.pop(server, None)
        if server not in job.awaited:
            return []
        job.awaited.discard(server)
        return [] if job.awaited or job.placement is None else self._all_heard()

    def _all_heard(self) -> list[Effect]:
        """Every server that has blocks has spoken: what they have is known, and the job goes on."""
        job = self._job
        effects: list[Effect] = []
        heard, self._heard = self._heard, {}
        if not heard:
            return effects
        kept = {version for _, versions in heard.values() for version in versions}
        kept |= set(range(min(applied for applied, _ in heard.values()), job.version + 1))
        # What a server has not applied yet it will keep when it does.
        self._reopen(v for v in kept if all(v in versions or v >= applied for applied, versions in heard.values()))
        for owner, (applied, _) in heard.items():
            effects += self._catch_up(owner, applied)
        effects += [Send(s, choice) for choice in self._commits.choices() for s in job.owners]
        for step in job.gate.steps():
            effects += self._commits.progress(step)
        return effects + job.serve()

    def _orient(self, server: NodeId, message: Register) -> tuple[list[Effect], int]:
        """Tell `server` where the job is; returns also which version it has then."""
        job = self._job
        assert job.placement is not None
        plan = Send(server, job.plan())
        if (message.incarnation, message.epoch) == (job.incarnation, job.placement.epoch):
            return [plan], message.applied
        assign = Send(server, job.assignment())
        if message.incarnation == job.incarnation and message.epoch:
            return [assign, plan], message.applied if message.applied >= -1 else job.version
        return [assign, plan], -1 if job.base is None else job.base.position.version

    def _catch_up(self, server: NodeId, applied: int) -> list[Effect]:
        """Commits that `server` has missed, now that it is known what must be kept."""
        job = self._job
        if server not in job.holders:
            return []
        return [Send(server, job.announcement(c)) for c in job.log if c.version > applied]

    def _reopen(self, kept: Iterable[int]) -> None:
        """Validations that were under way, on versions that every server still has."""
        job = self._job
        ends = {phase.end_version for phase in job.phases.phases}
        closed = [p for p in job.phases.phases if p.end_version is not None]
        versions = sorted(v for v in kept if v >= 0)
        for version in versions:
            for validator in job.evaluations.due(version, last=version in ends):
                if (validator.number, version) in self._validated:
                    continue
                if job.evaluations.open(validator, version, version) is not None:
                    job.pins.add(version, "evaluation")
        for phase in closed[-1:]:  # somebody may not have read its last version yet
            number, end = phase.spec.number, phase.end_version
            if end is not None and end in versions and number not in job.pinned_phases:
                job.pins.add(end, f"phase {number}")
                job.pinned_phases.append(number)

    def adopt(self, worker: NodeId, message: Register, *, again: bool = False) -> list[Effect]:
        """A worker tells what it holds: leases of an earlier coordinator go on, sealed slots are reported again.

        What it had in hand counts the first time that it says so: since then it may have asked for something else.
        """
        job = self._job
        job.declared[worker] = max(job.declared.get(worker, 0), message.declared)
        if message.progress >= 0:
            job.attendance.enter(worker, message.progress // 2)
        if message.incarnation != job.incarnation:
            return []
        effects: list[Effect] = []
        for held in message.leases:
            slot = SlotId(held.step, held.slot)
            if again and held.sealed is None:
                continue
            if job.placement is not None and held.epoch not in (0, job.placement.epoch):
                continue  # void since the blocks have changed hands
            if not self._is_slot(slot) or not job.leases.adopt(worker, slot, held.fence, job.now):
                continue
            if held.sealed is not None:
                job.leases.seal(held.fence, worker)
                job.gate.sealed(held.sealed)
                effects += self._commits.progress(held.step, held.slot, held.fence)
        return effects

    def _is_slot(self, slot: SlotId) -> bool:
        job = self._job
        if slot.step == INIT_STEP:
            return job.version < 0 and slot.slot == 0
        return job.is_open(slot.step) and 0 <= slot.slot < job.schedule.num_slots(slot.step)

    # ------------------------------------------------------------ a job goes back

    def rewind(self, why: str) -> list[Effect]:
        """Begin a new incarnation from the newest complete checkpoint, or from nothing; everyone reloads."""
        return self._begin(self._job.checkpoint, why)

    def resume(self, folder: str) -> list[Effect]:
        """The job was cut off as a whole: go on from the checkpoint in `folder` ("": from nothing)."""
        job = self._job
        job.checkpoints = [c for c in job.checkpoints if c.folder <= folder]
        return self._begin(job.checkpoint, RESUMED)

    def not_loaded(self, message: NotLoaded) -> list[Effect]:
        """A server could not load the checkpoint of this incarnation: the next older one must do."""
        job = self._job
        if not job.is_current(message.incarnation, message.epoch) or job.base is None:
            return []
        job.checkpoints = [c for c in job.checkpoints if c.folder != message.folder]
        job.warning = message.problem
        return self.rewind(f"{message.folder} cannot be loaded")

    def _begin(self, to: Checkpoint | None, why: str) -> list[Effect]:
        job = self._job
        position = None if to is None else to.position
        before, later = job.version, job.phases.phases
        number = job.incarnation + 1
        fact = IncarnationFact(number, "" if to is None else to.folder, position, why)
        effects: list[Effect] = [Write(FactRow(number, before, fact))]
        over = SaveOver(job.generation, job.incarnation, -1 if job.saving is None else job.saving)
        effects += [Send(s, over) for s in job.owners if job.saving is not None]
        if why != RESUMED:
            job.rewinds += 1
        job.recomputed += _steps_between(before, position)
        job.incarnation, job.base = number, to
        job.place(None)
        for server in [m.node for m in job.members.by_role("server") if not m.start]:
            job.members.remove(server)  # awaited as a holder, never heard: nothing is placed there until it comes
        job.version = -1 if position is None else position.version
        job.watermark = Watermark() if position is None else Watermark(position.watermark, position.above)
        self._take(position)
        self._validated.clear()
        self.forget()
        self._keep_phases(later, effects)
        self._keeping.restart(job.version)
        self._begin_leasing()
        self._settle()
        if job.version >= 0:
            self._reopen([job.version])
        return effects + self._send_back()

    def _take(self, position: Position | None) -> None:
        """Nothing is under way; what is known is what `position` says."""
        job = self._job
        counter = job.leases.counter
        job.schedule = Schedule(() if position is None else position.segments)
        job.phases = PhaseBook(job.schedule, job.spec.workers)
        job.phases.phases = [] if position is None else [Phase.of(entry) for entry in position.phases]
        job.gate, job.pins = Gate(), PinBook()
        job.leases = job.new_leases(counter)
        job.pinned_phases.clear()
        job.suspects.clear()
        job.log.clear()
        job.awaited.clear()
        job.unpin_next, job.final = None, -1
        job.evaluations.restart(() if position is None else position.results)
        job.claims.restart(() if position is None else position.claims)
        job.totals.samples = 0.0 if position is None else position.samples
        job.totals.skipped_slots = 0 if position is None else position.empty
        job.logs = {} if position is None else dict(position.logs)
        job.closing, job.state = None, "waiting"

    def _keep_phases(self, later: list[Phase], effects: list[Effect]) -> None:
        """A phase that began where the checkpoint is begins there again."""
        job = self._job
        number = len(job.phases.phases)
        if number < len(later) and job.phases.open is None and not job.watermark.above:
            spec, segment = later[number].spec, later[number].segment
            if segment.step == job.watermark.low and job.version >= 0:
                job.schedule.append(segment)
                job.phases.phases.append(Phase(spec, segment, segment.end_step))
                effects.append(job.fact(PhaseFact(spec, segment)))

    def _send_back(self) -> list[Effect]:
        """Workers whose script is further than the job must start again."""
        effects: list[Effect] = []
        for member in list(self._job.members.by_role("worker")):
            if not member.left and self.is_ahead(self._job.progress.get(member.node, -1)):
                effects += self.send_back(member.node)
        return effects

    def send_back(self, worker: NodeId) -> list[Effect]:
        """`worker` must start again."""
        reason = f"the job went back to version {self._job.version}"
        return [Send(worker, Abort(self._job.generation, "rewound", reason)), *self.lose(worker)]

    def is_ahead(self, progress: int) -> bool:
        """Whether a script that is so far on has left behind what the job must do again."""
        job = self._job
        if job.version < 0:
            return progress >= 0 and job.incarnation > 0
        number = next((i for i, p in enumerate(job.phases.phases) if p.end_version is None), None)
        if number is not None:
            return progress > 2 * number
        return progress >= 2 * len(job.phases.phases)


def _steps_between(version: int, position: Position | None) -> int:
    """How many steps `version` has more than `position`; version 0 has none."""
    return max(0, version - (0 if position is None else max(0, position.version)))
