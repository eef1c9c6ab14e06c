"""The coordinator's decisions: membership, leases, the commit log, phases, validation.

Events in (`handle`, `tick`, `lost`), effects out, in the order in which the shell must carry them out: a `Write` is
durable before the `Send`s behind it leave. Rules 1 to 4, 6 to 8 and 11 of the design.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from paceline.config.dials import ClusterSpec
from paceline.core.effects import Effect, EvaluationRow, LogRow, PlacementRow, Send, Write
from paceline.core.evaluation import EvaluationBook
from paceline.core.gate import Gate, Passed, clip_scale, disagreement, mean_logs
from paceline.core.layout import cut
from paceline.core.leases import LeaseBook
from paceline.core.membership import Member, Membership
from paceline.core.phases import Phase, PhaseBook
from paceline.core.pins import PinBook
from paceline.core.placement import balance
from paceline.core.schedule import Schedule
from paceline.core.window import Watermark
from paceline.errors import MismatchError, SlotPoisonedError
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    BeatAck,
    BeginPhase,
    Bye,
    Choose,
    Claim,
    ClaimDone,
    Claimed,
    Committed,
    Declare,
    EvalGrant,
    EvalOver,
    Exited,
    Failed,
    GiveBack,
    Grant,
    JobArgs,
    Message,
    Ok,
    PhaseBegun,
    PhaseOver,
    PlacementRequest,
    Plan,
    Prepare,
    Prepared,
    Ready,
    Receipt,
    Refused,
    Register,
    Revoke,
    Stop,
    Turn,
    Unpin,
    Welcome,
)
from paceline.types import INIT_STEP, BlockSpec, Commit, ModelSpec, NodeId, Placement, SlotId


_KEPT_REPLIES = 8


@dataclass(slots=True)
class Totals:
    """What the summary counts."""

    samples: float = 0.0
    skipped_slots: int = 0
    wasted_slots: int = 0
    max_staleness: int = 0
    max_lag: int = 0
    lost_workers: int = 0


@dataclass(slots=True)
class _Claim:
    holder: NodeId
    done: bool = False
    waiting: dict[NodeId, int] = field(default_factory=dict)


class CoordinatorCore:
    """State of the coordinator. Mutated only through `handle`, `tick` and `lost`."""

    def __init__(self, spec: ClusterSpec, generation: int) -> None:
        self.spec = spec
        self.generation = generation
        self.incarnation = 0
        self.state = "waiting"
        self.failure: Abort | None = None
        self.stop_reason: str | None = None
        self.job: JobArgs | None = None
        self.model: ModelSpec | None = None
        self.blocks: tuple[BlockSpec, ...] = ()
        self.placement: Placement | None = None
        self.version = -1
        self.step = 0
        self.logs: dict[str, float] = {}
        self.totals = Totals()
        self.members = Membership(spec.heartbeat_timeout_s)
        self.watermark = Watermark()
        self.schedule = Schedule()
        self.phases = PhaseBook(self.schedule, spec.workers)
        self.leases = LeaseBook(self.schedule, generation, hold=spec.held, max_losses=spec.max_losses)
        self.gate = Gate()
        self.evaluations = EvaluationBook()
        self.pins = PinBook()
        self._claims: dict[str, _Claim] = {}
        self._waiting: dict[NodeId, Turn] = {}
        self._prepare_waiting: dict[NodeId, int] = {}
        self._replied: dict[NodeId, dict[int, Send]] = {}
        self._last_req: dict[tuple[NodeId, type[Message]], int] = {}
        self._log: deque[Commit] = deque()
        self._applied: dict[NodeId, int] = {}
        self._suspects: list[tuple[float, SlotId]] = []
        self._handlers: dict[type[Message], Callable[..., list[Effect]]] = {
            Prepare: self._prepare,
            Declare: self._declare,
            BeginPhase: self._begin_phase,
            Turn: self._turn,
            GiveBack: self._give_back,
            Stop: self._stop,
            Claim: self._claim,
            ClaimDone: self._claim_done,
            Bye: self._bye,
            PlacementRequest: self._where,
            Receipt: self._receipt,
            Ready: self._ready,
        }

    # ------------------------------------------------------------ events

    def handle(
        self, sender: NodeId, message: Message, payload: Sequence[object], now: float
    ) -> list[Effect]:
        """One message. A request is answered once; when it is repeated, the same answer is."""
        match message:
            case Register():
                return self._register(sender, message, now)
            case Beat():
                return self._beat(sender, message, now)
            case Exited():
                return [Send(sender, Ok(message.req)), *self._exited(message, now)]
            case Failed():
                name = self.members.members[sender].name if sender in self.members.members else sender
                return [
                    Send(sender, Ok(message.req)),
                    *self.fail(message.kind, f"{name} failed", message.trace),
                ]
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        req = getattr(message, "req", None)
        if not self.members.seen(sender, now):
            return [] if req is None else [Send(sender, Refused(req, "unknown", "register first"))]
        if self.failure is not None:
            return [Send(sender, self.failure)]
        if req is not None:
            kind = type(message)
            if req <= self._last_req.get((sender, kind), 0):
                again = self._replied.get(sender, {}).get(req)
                return [again] if again is not None else []
            self._last_req[sender, kind] = req
        try:
            effects = handler(sender, message)
        except MismatchError as error:
            return self.fail("script", str(error), "")
        self._remember(effects)
        return effects

    def _remember(self, effects: list[Effect]) -> None:
        """Keep the last few answers to each peer, for the case that they are lost and asked for again."""
        for effect in effects:
            if isinstance(effect, Send):
                req = getattr(effect.message, "req", None)
                if req is not None:
                    kept = self._replied.setdefault(effect.to, {})
                    kept[req] = effect
                    if len(kept) > _KEPT_REPLIES:
                        del kept[next(iter(kept))]

    def tick(self, now: float) -> list[Effect]:
        """Time passes (the coordinator's running time, its inbox drained): who has been silent for too long?"""
        effects: list[Effect] = []
        for member in self.members.silent(now):
            effects += self._lose(member, f"silent for {now - member.seen:.1f} s", now)
        due = [slot for at, slot in self._suspects if at <= now]
        if due:
            self._suspects = [(at, slot) for at, slot in self._suspects if at > now]
            for slot in due:
                self.leases.requeue(slot)
            effects += self._serve()
        self._remember(effects)
        return effects

    def lost(self, node: NodeId, reason: str, now: float) -> list[Effect]:
        """The transport lost the session with `node`."""
        member = self.members.members.get(node)
        effects = [] if member is None else self._lose(member, reason, now)
        self._remember(effects)
        return effects

    def fail(self, kind: str, reason: str, trace: str) -> list[Effect]:
        """The job cannot go on; everyone is told, once."""
        if self.failure is not None:
            return []
        self.state = "failed"
        self.failure = Abort(self.generation, kind, reason, trace)
        return [Send(node, self.failure) for node in self.members.members]

    # ------------------------------------------------------------ membership

    def _register(self, sender: NodeId, message: Register, now: float) -> list[Effect]:
        if self.failure is not None:
            return [Send(sender, self.failure)]
        effects: list[Effect] = []
        if message.job is not None:
            if self.job is None:
                self.job = message.job
            elif (message.job.seed, message.job.mode) != (self.job.seed, self.job.mode):
                return self.fail(
                    "script",
                    f"{message.name} joined with seed={message.job.seed}, mode={message.job.mode!r}; "
                    f"the job has seed={self.job.seed}, mode={self.job.mode!r}",
                    "",
                )
        old = self.members.members.get(sender)
        if old is None:
            self.members.add(
                Member(
                    sender, message.role, message.name, message.pid, message.host, message.address, now, now
                )
            )
        welcome = Welcome(message.req, self.generation, self.incarnation, self.job, self.spec.heartbeat_s)
        effects.append(Send(sender, welcome))
        if message.role == "server":
            effects += self._place()
        return effects

    def _beat(self, sender: NodeId, beat: Beat, now: float) -> list[Effect]:
        known = self.members.seen(beat.node, now)
        effects: list[Effect] = [Send(sender, BeatAck(self.generation, self.state, known))]
        member = self.members.members.get(beat.node)
        if member is not None and member.role == "server" and self.placement is not None:
            effects += self._repair(member.node, beat)
        return effects

    def _repair(self, server: NodeId, beat: Beat) -> list[Effect]:
        """Say again what a server has missed. A lag that one beat shows may be on its way; two beats mean it is not."""
        effects: list[Effect] = []
        if beat.epoch == 0:
            effects.append(Send(server, self._assignment()))
        if beat.segments < len(self.schedule.segments):
            effects.append(Send(server, self._plan()))
        before = self._applied.get(server)
        self._applied[server] = beat.applied
        if before == beat.applied < self.version:
            missing = [c for c in self._log if c.version > beat.applied][:64]
            effects += [Send(server, Committed(self.generation, c)) for c in missing]
        low = min((self._applied.get(s, -2) for s in self._servers()), default=-2)
        while self._log and self._log[0].version <= low:
            self._log.popleft()
        return effects

    def _exited(self, message: Exited, now: float) -> list[Effect]:
        for member in list(self.members.members.values()):
            if member.name == message.name and member.pid == message.pid:
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return self._lose(member, how, now)
        return []

    def _lose(self, member: Member, why: str, now: float) -> list[Effect]:
        self.members.remove(member.node)
        self._waiting.pop(member.node, None)
        self._prepare_waiting.pop(member.node, None)
        self._replied.pop(member.node, None)
        if member.role == "server" and not self._over():
            if self.placement is None:
                return []
            return self.fail("lost", f"{member.name} is lost ({why}), and its blocks have no other copy", "")
        if member.role != "worker":
            return []
        if not member.left:
            self.totals.lost_workers += 1
        _, sealed = self.leases.revoke(member.node)
        self._suspects += [(now + self.spec.grace_s, slot) for slot in sealed]
        self.evaluations.revoke(member.node)
        effects = self._release_claims(member.node)
        poisoned = self.leases.poisoned()
        if poisoned is not None:
            return effects + self._poison(*poisoned)
        effects += self._release_phase_pins()
        return effects + self._serve()

    def _poison(self, slot: SlotId, holders: tuple[NodeId, ...]) -> list[Effect]:
        samples = "the initial weights"
        if slot.step != INIT_STEP:
            segment, at = self.schedule.segment(slot.step), self.schedule.place(slot.step)
            start = at.offset + slot.slot * segment.batch_size
            stop = min(start + segment.batch_size, at.offset + at.samples)
            samples = f"positions {start}..{stop - 1} of epoch {at.epoch}"
        error = SlotPoisonedError(slot.step, slot.slot, holders, samples)
        return self.fail("lost", str(error), "")

    def _over(self) -> bool:
        return self.state in ("finished", "failed")

    def _bye(self, sender: NodeId, message: Bye) -> list[Effect]:
        member = self.members.members[sender]
        member.left = True
        # A clean end in the middle of the job means that the others go on without this worker.
        self.leases.revoke(sender)
        self.evaluations.revoke(sender)
        return [
            Send(sender, Ok(message.req)),
            *self._release_claims(sender),
            *self._release_phase_pins(),
            *self._serve(),
        ]

    # ------------------------------------------------------------ model and placement

    def _servers(self) -> list[NodeId]:
        if self.placement is not None:
            return sorted(set(self.placement.addresses))
        return [m.node for m in self.members.by_role("server")]

    def _prepare(self, sender: NodeId, message: Prepare) -> list[Effect]:
        name = self.members.members[sender].name
        if self.model is None:
            self.model = message.spec
            self.blocks = cut(message.spec.tensors)
        else:
            _compare_models(self.model, message.spec, name)
        self._prepare_waiting[sender] = message.req
        return self._place()

    def _place(self) -> list[Effect]:
        """Place the blocks once the model is known and every server is there; answer who waits for it."""
        effects: list[Effect] = []
        if self.model is None:
            return effects
        if self.placement is None:
            servers = self.members.by_role("server")
            if len(servers) < self.spec.servers:
                return effects
            owners = balance(self.blocks, [s.node for s in servers])
            self.placement = Placement(1, owners, {s.node: s.address or "" for s in servers})
            effects.append(Write(PlacementRow(self.placement)))
            effects += [Send(s.node, self._assignment()) for s in servers]
        for node, req in self._prepare_waiting.items():
            effects.append(Send(node, Prepared(req, self.generation, self.incarnation, self.placement)))
        self._prepare_waiting.clear()
        return effects

    def _where(self, sender: NodeId, message: PlacementRequest) -> list[Effect]:
        assert self.placement is not None
        return [Send(sender, Prepared(message.req, self.generation, self.incarnation, self.placement))]

    @property
    def whole(self) -> bool:
        """Whether a slot counts only as one whole attempt even in lock-step."""
        return self.model is None or not self.model.deterministic

    def _assignment(self) -> Assign:
        assert self.placement is not None
        assert self.model is not None
        return Assign(self.generation, self.incarnation, self.placement, self.model, self.blocks, self.whole)

    def _plan(self) -> Plan:
        return Plan(self.generation, tuple(self.schedule.segments))

    # ------------------------------------------------------------ phases, stopping

    def _declare(self, sender: NodeId, message: Declare) -> list[Effect]:
        known, new = self.evaluations.validators, message.validator
        if new.number == len(known):
            known.append(new)
        elif new != known[new.number]:
            raise MismatchError(
                f"{self.members.members[sender].name} declared validation {new.number} as {new}, "
                f"others as {known[new.number]}: every worker must run the same script"
            )
        return [Send(sender, Ok(message.req))]

    def _begin_phase(self, sender: NodeId, message: BeginPhase) -> list[Effect]:
        member = self.members.members[sender]
        member.phase = max(member.phase, message.phase.number)
        effects = self._release_phase_pins()
        if self.state == "finished":
            return [*effects, Send(sender, PhaseBegun(message.req, self.generation, None))]
        assert self.job is not None
        segment = self.phases.begin(message.phase, self.job, member.name)
        if segment is not None:
            effects.append(Write(segment))
            effects += [Send(s, self._plan()) for s in self._servers()]
        reply = PhaseBegun(message.req, self.generation, self.schedule.segments[message.phase.number])
        effects.append(Send(sender, reply))
        if segment is not None and segment.end_step == segment.step:
            effects += self._end_phase_if_done()
        return effects + (self._serve() if segment is not None else [])

    def _stop(self, sender: NodeId, message: Stop) -> list[Effect]:
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        phase = self.phases.open
        if self.state == "finished" or phase is None:
            self.state = "finished"
            self.stop_reason = self.stop_reason or message.reason
            return effects + self._serve()
        if self.stop_reason is None:
            self.stop_reason = message.reason
        end = self.watermark.low if message.at_once else message.step + 1
        if self.schedule.window(self.watermark.low) != 0:
            # With a window, commits are not in step order: the log is closed, or drains what is leased.
            end = self.watermark.low if message.at_once else max(end, self._highest_leased() + 1)
        self.phases.end_at(max(end, self.watermark.low))
        for lease in self.leases.beyond(phase.end):
            effects.append(Send(lease.worker, Revoke(self.generation, lease.fence)))
        self.gate.drop_beyond(phase.end)
        return effects + self._end_phase_if_done() + self._serve()

    def _highest_leased(self) -> int:
        return max(
            (ls.slot.step for m in self.members.members for ls in self.leases.held_by(m)), default=-1
        )

    def _end_phase_if_done(self) -> list[Effect]:
        phase = self.phases.open
        if phase is None or self.version < 0 or self.watermark.low < phase.end:
            return []
        phase.end_version = self.version
        if self.stop_reason is not None:
            self.state = "finished"
        return self._open_rounds(last=True)

    def _phase_over(self, phase: Phase) -> bool:
        return phase.end_version is not None and not any(r.validator.every for r in self.evaluations.rounds.values())

    def _release_phase_pins(self) -> list[Effect]:
        """The last version of a phase is kept until every live worker has gone on."""
        effects: list[Effect] = []
        workers = [m for m in self.members.members.values() if m.role == "worker" and not m.left]
        at = min((m.phase for m in workers), default=len(self.phases.phases))
        for number, phase in enumerate(self.phases.phases[:at]):
            if phase.end_version is not None:
                effects += self._unpin(phase.end_version, f"phase {number}")
        return effects

    def _unpin(self, version: int, reason: str) -> list[Effect]:
        if not self.pins.discard(version, reason):
            return []
        return [Send(s, Unpin(self.generation, self.incarnation, version)) for s in self._servers()]

    # ------------------------------------------------------------ turns

    def _turn(self, sender: NodeId, turn: Turn) -> list[Effect]:
        effects: list[Effect] = []
        if turn.sealed is not None and turn.incarnation == self.incarnation:
            lease = self.leases.seal(turn.sealed.fence)
            if lease is not None and lease.worker == sender:
                self.gate.sealed(turn.sealed)
                effects += self._progress(turn.sealed.step)
        if turn.evaluated is not None:
            effects += self._evaluated(turn)
        if turn.abandoned is not None:
            self.leases.abandon(turn.abandoned)
            self.evaluations.abandon(turn.abandoned)
            effects += self._serve()
        if self.failure is not None:
            return effects
        self._waiting[sender] = turn
        reply = self._offer(sender, turn)
        if reply is not None:
            del self._waiting[sender]
            effects.append(Send(sender, reply))
        return effects

    def _give_back(self, sender: NodeId, message: GiveBack) -> list[Effect]:
        self.leases.abandon(message.fence)
        return [Send(sender, Ok(message.req)), *self._serve()]

    def _serve(self) -> list[Effect]:
        """Something became available: offer it to those who wait, in the order in which they asked."""
        effects: list[Effect] = []
        skipped = 0
        while len(self._waiting) > skipped:
            node, turn = next(islice(self._waiting.items(), skipped, None))
            reply = self._offer(node, turn)
            if reply is None:
                if not self._anything_else():
                    break
                skipped += 1
                continue
            del self._waiting[node]
            effects.append(Send(node, reply))
        return effects

    def _anything_else(self) -> bool:
        """Whether somebody further back could be served although the first could not."""
        phase = self.phases.open
        return phase is None or self.evaluations.waiting() or any(t.evaluation >= 0 for t in self._waiting.values())

    def _offer(self, node: NodeId, turn: Turn) -> Message | None:
        """What `node` gets now: a validation slot first, then a training slot, or the end of its phase."""
        if self.failure is not None or self.placement is None:
            return None
        lead = self.members.lead() == node
        if self.version < 0:
            return self._offer_training(node, turn, lead)
        if turn.evaluation >= 0:
            self._request_evaluation(turn.evaluation)
            known = self.evaluations.latest.get(turn.evaluation)
            if known is not None:
                return EvalOver(turn.req, self.generation, turn.evaluation, *known)
        if self.evaluations.waiting():
            granted = self.evaluations.grant(node, self.leases.fence())
            assert granted is not None
            round_, slot = granted
            fence = next(f for f, held in round_.holders.items() if held == (slot, node))
            return EvalGrant(
                turn.req,
                self.generation,
                self.incarnation,
                self.placement.epoch,
                round_.number,
                round_.validator.number,
                slot,
                fence,
                round_.version,
                lead,
            )
        if turn.evaluation >= 0:
            return None
        return self._offer_training(node, turn, lead)

    def _offer_training(self, node: NodeId, turn: Turn, lead: bool) -> Message | None:
        assert self.placement is not None
        if self.version >= 0 and (self.state == "finished" or 0 <= turn.phase < len(self.phases.phases)):
            number = min(turn.phase, len(self.phases.phases) - 1)
            phase = self.phases.phases[number] if number >= 0 else None
            if phase is None or self._phase_over(phase):
                return self._over_message(turn, phase, lead)
        phase = self.phases.open
        end = phase.end if phase is not None and turn.evaluation < 0 else 0
        lease = self.leases.grant(node, self.watermark.low, self.version >= 0, end)
        if lease is None:
            return None
        if self.state == "waiting":
            self.state = "running"
        step, slot = lease.slot
        return Grant(
            turn.req,
            self.generation,
            self.incarnation,
            self.placement.epoch,
            step,
            slot,
            self.schedule.num_slots(step),
            lease.fence,
            None if step == INIT_STEP else self.schedule.segment(step),
            lead,
        )

    def _over_message(self, turn: Turn, phase: Phase | None, lead: bool) -> PhaseOver:
        assert self.placement is not None
        version = self.version if phase is None or phase.end_version is None else phase.end_version
        if version != self.version and version not in self.pins:
            version = -1  # long gone: a late joiner reads the state it needs with its first lease
        return PhaseOver(
            turn.req,
            self.generation,
            self.incarnation,
            self.placement.epoch,
            turn.phase,
            version,
            self.watermark.low,
            self.state == "finished",
            lead,
            self.evaluations.metrics(),
        )

    # ------------------------------------------------------------ commits

    def _receipt(self, sender: NodeId, message: Receipt) -> list[Effect]:
        if not self._current(message.incarnation, message.epoch) or self._is_committed(message.step):
            return []
        chosen = self.gate.chosen(message.step).get(message.slot)
        if chosen is not None:
            return [
                Send(sender, Choose(self.generation, self.incarnation, message.step, message.slot, chosen))
            ]
        self.gate.receipt(sender, message)
        return self._progress(message.step)

    def _ready(self, sender: NodeId, message: Ready) -> list[Effect]:
        if not self._current(message.incarnation, message.epoch) or self._is_committed(message.step):
            return []
        self.gate.ready(sender, message, whole=self._is_whole(message.step))
        return self._progress(message.step)

    def _current(self, incarnation: int, epoch: int) -> bool:
        return self.placement is not None and (incarnation, epoch) == (self.incarnation, self.placement.epoch)

    def _is_committed(self, step: int) -> bool:
        return self.version >= 0 if step == INIT_STEP else self.watermark.has(step)

    def _is_whole(self, step: int) -> bool:
        return self.whole or step == INIT_STEP or self.schedule.window(step) != 0

    def _progress(self, step: int) -> list[Effect]:
        """Choose attempts and commit as far as what is known of `step` allows."""
        phase = self.phases.open
        if step != INIT_STEP and (phase is None or step >= phase.end or self._is_committed(step)):
            return []
        servers, slots = self._servers(), self.schedule.num_slots(step)
        effects: list[Effect] = []
        if self._is_whole(step) and slots > 1:
            for slot in self.gate.choose(step, servers, self.leases):
                fence = self.gate.chosen(step)[slot.slot]
                choose = Choose(self.generation, self.incarnation, step, slot.slot, fence)
                effects += [Send(s, choose) for s in servers]
        if step != INIT_STEP and self.schedule.window(step) == 0 and step != self.watermark.low:
            return effects
        passed = self.gate.passed(step, slots, servers, whole=self._is_whole(step), valid=self.leases)
        return effects + (self._commit(passed) if passed is not None else [])

    def _commit(self, passed: Passed) -> list[Effect]:
        seals, ready, step = passed.seals, passed.ready, passed.step
        conflict = disagreement(seals)
        if conflict is not None:
            a, b, first, second = conflict
            return self.fail(
                "script",
                f"slots {a} and {b} of step {step} disagree on hyper-parameters ({first} against {second}): "
                "change them by a prepared scheduler, or as a function of job.step only",
                "",
            )
        assert self.model is not None
        version = self.version + 1
        ends = self._ends_phase(step)
        due = self.evaluations.due(version, last=ends)
        if due:
            self.pins.add(version, "evaluation")
        if ends:
            self.pins.add(version, f"phase {len(self.phases.phases) - 1}")
        commit = Commit(
            self.incarnation,
            version,
            step,
            tuple(s.fence for s in seals),
            seals[0].hyper,
            clip_scale(ready, self.model.clip_norm if step != INIT_STEP else None),
            version in self.pins,
            max(r.staleness for r in ready),
            max(r.lag for r in ready),
        )
        effects: list[Effect] = [Write(commit)]
        self.version = version
        self.watermark.add(step)
        self._log.append(commit)
        self._count(commit, passed)
        if step != INIT_STEP:
            values = mean_logs(seals)
            self.logs.update(values)
            if values:
                effects.append(Write(LogRow(version, step, values)))
        effects += [Send(s, Committed(self.generation, commit)) for s in self._servers()]
        self.gate.forget(step)
        won = set(commit.fences)
        self.totals.wasted_slots += sum(
            1 for lease in self.leases.committed(step) if lease.fence not in won and self.leases.is_sealed(lease.slot)
        )
        if due:
            effects += self._open_rounds(last=False)
        return effects + self._end_phase_if_done() + self._serve()

    def _ends_phase(self, step: int) -> bool:
        phase = self.phases.open
        if phase is None or step == INIT_STEP:
            return False
        return self.version + 1 == phase.end

    def _count(self, commit: Commit, passed: Passed) -> None:
        if commit.step == INIT_STEP:
            return
        self.step = max(self.step, commit.step + 1)
        batch = self.schedule.segment(commit.step).batch_size
        self.totals.samples += sum(s.weight * batch for s in passed.seals)
        self.totals.skipped_slots += sum(1 for s in passed.seals if s.weight == 0)
        self.totals.max_staleness = max(self.totals.max_staleness, commit.staleness)
        self.totals.max_lag = max(self.totals.max_lag, commit.lag)

    # ------------------------------------------------------------ validation

    def _open_rounds(self, *, last: bool) -> list[Effect]:
        for validator in self.evaluations.due(self.version, last=last):
            if self.evaluations.open(validator, self.version, self.watermark.low) is not None:
                self.pins.add(self.version, "evaluation")
        return [] if self.evaluations.rounds else self._unpin(self.version, "evaluation")

    def _request_evaluation(self, number: int) -> None:
        if number not in self.evaluations.latest:
            validator = self.evaluations.validators[number]
            self.evaluations.open(validator, self.version, self.watermark.low)

    def _evaluated(self, turn: Turn) -> list[Effect]:
        assert turn.evaluated is not None
        ended = self.evaluations.report(turn.evaluated)
        if ended is None:
            return []
        row = EvaluationRow(
            self.incarnation, ended.version, ended.step, ended.validator.name, ended.metrics()
        )
        effects: list[Effect] = [Write(row)]
        if not any(r.version == ended.version for r in self.evaluations.rounds.values()):
            effects += self._unpin(ended.version, "evaluation")
        return effects + self._serve()

    # ------------------------------------------------------------ things done once a job

    def _claim(self, sender: NodeId, message: Claim) -> list[Effect]:
        claim = self._claims.get(message.key)
        if claim is None:
            self._claims[message.key] = _Claim(sender)
            return [Send(sender, Claimed(message.req, True))]
        if claim.done:
            return [Send(sender, Claimed(message.req, False))]
        claim.waiting[sender] = message.req
        return []

    def _claim_done(self, sender: NodeId, message: ClaimDone) -> list[Effect]:
        claim = self._claims.get(message.key)
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        if claim is not None and claim.holder == sender:
            claim.done = True
            effects += [Send(node, Claimed(req, False)) for node, req in claim.waiting.items()]
            claim.waiting.clear()
        return effects

    def _release_claims(self, node: NodeId) -> list[Effect]:
        """A worker that is gone cannot finish what it claimed: the next one in line does."""
        effects: list[Effect] = []
        for key, claim in list(self._claims.items()):
            claim.waiting.pop(node, None)
            if claim.holder == node and not claim.done:
                if claim.waiting:
                    heir = next(iter(claim.waiting))
                    effects.append(Send(heir, Claimed(claim.waiting.pop(heir), True)))
                    claim.holder = heir
                else:
                    del self._claims[key]
        return effects


def _compare_models(known: ModelSpec, new: ModelSpec, worker: str) -> None:
    """Name the first difference between two workers' models.

    Raises:
        MismatchError: if there is one.
    """
    if new == known:
        return
    for mine, theirs in zip(new.tensors, known.tensors, strict=False):
        if mine != theirs:
            raise MismatchError(f"{worker} has {mine} where others have {theirs}: build the same model everywhere")
    if len(new.tensors) != len(known.tensors):
        raise MismatchError(f"{worker} has {len(new.tensors)} tensors, others {len(known.tensors)}")
    raise MismatchError(f"{worker} prepared {new.optimizer}, clip_norm={new.clip_norm}; others {known.optimizer}")
