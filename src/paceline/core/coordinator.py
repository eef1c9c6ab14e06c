"""The coordinator's decisions: membership, leases, the commit log, phases, validation.

Events in (`handle`, `tick`, `lost`), effects out, in the order in which the shell must carry them out: a `Write` is
durable before the `Send`s behind it leave. Rules 1 to 4, 6 to 8 and 11 of the design.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.config.dials import ClusterSpec
from paceline.core.claims import ClaimBook
from paceline.core.effects import Effect, EvaluationRow, LogRow, PlacementRow, Send, Write
from paceline.core.evaluation import EvaluationBook
from paceline.core.gate import Gate, Passed, clip_scale, disagreement, mean_logs
from paceline.core.layout import cut
from paceline.core.leases import LeaseBook
from paceline.core.membership import Member, Membership
from paceline.core.phases import Attendance, Phase, PhaseBook
from paceline.core.pins import PinBook
from paceline.core.placement import balance
from paceline.core.requests import RequestBook
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
    Committed,
    Declare,
    EvalGrant,
    EvalOver,
    Evaluated,
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
    Summed,
    Turn,
    Unpin,
    Welcome,
)
from paceline.types import (
    INIT_STEP,
    BlockSpec,
    Commit,
    Fence,
    ModelSpec,
    NodeId,
    Placement,
    Segment,
    SlotId,
)

_MAX_REPEATED_COMMITS = 1024
_REPEATABLE = (
    GiveBack,
    PlacementRequest,
)  # several may be under way at once, and doing one twice changes nothing


@dataclass(slots=True)
class Totals:
    """What the summary counts."""

    samples: float = 0.0
    skipped_slots: int = 0
    wasted_slots: int = 0
    max_staleness: int = 0
    max_lag: int = 0
    lost_workers: int = 0


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
        self._claims = ClaimBook()
        self._attendance = Attendance()
        self._declared: dict[NodeId, int] = {}
        self._requests = RequestBook()
        self._waiting: OrderedDict[NodeId, Turn] = OrderedDict()
        self._evaluating: dict[NodeId, Turn] = {}
        self._prepare_waiting: dict[NodeId, int] = {}
        self._owners: tuple[NodeId, ...] = ()
        self._log: deque[Commit] = deque()
        self._applied: dict[NodeId, int] = {}
        self._suspects: deque[tuple[float, SlotId]] = deque()
        self._pinned_phases: list[int] = []
        self._unpin_next: int | None = None
        self._closing: Segment | None = None
        self._final = -1
        self._now = 0.0
        self._handlers: dict[type[Message], Callable[..., list[Effect]]] = {
            Prepare: self._prepare,
            Declare: self._declare,
            BeginPhase: self._begin_phase,
            Turn: self._turn,
            GiveBack: self._give_back,
            Stop: self._stop,
            Claim: self._claims.claim,
            ClaimDone: self._claims.done,
            Bye: self._bye,
            PlacementRequest: self._where,
            Receipt: self._receipt,
            Ready: self._ready,
            Summed: self._summed,
        }

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Effect]:
        """One message. A request is carried out once; when it is repeated, it gets the same answer."""
        self._now = now
        effects = self._handle(sender, message)
        self._requests.answered(effects)
        return effects

    def _handle(self, sender: NodeId, message: Message) -> list[Effect]:
        match message:
            case Register():
                return self._register(sender, message)
            case Beat():
                return self._beat(sender, message)
            case Exited():
                return [Send(sender, Ok(message.req)), *self._exited(message)]
            case Failed():
                name = self.members.members[sender].name if sender in self.members.members else sender
                return [
                    Send(sender, Ok(message.req)),
                    *self.fail(message.kind, f"{name} failed", message.trace),
                ]
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        req: int | None = getattr(message, "req", None)
        if not self.members.seen(sender, self._now):
            return [] if req is None else [Send(sender, Refused(req, "unknown", "register first"))]
        if self.failure is not None:
            return [Send(sender, self.failure)]
        if req is not None and not isinstance(message, _REPEATABLE) and self._requests.seen(sender, message, req):
            again = self._requests.reply(sender, message, req)
            if again is None:
                return []
            if not self._is_void(again.message):
                return [again]
            # The lease in that answer is over: the worker that waits on it needs another one.
        try:
            return handler(sender, message)
        except MismatchError as error:
            return self.fail("script", str(error), "")

    def _is_void(self, reply: Message) -> bool:
        """Whether an answer that was given is a lease that no longer holds."""
        match reply:
            case Grant(fence=fence):
                return fence not in self.leases
            case EvalGrant(fence=fence):
                return fence not in self.evaluations
        return False

    def tick(self, now: float) -> list[Effect]:
        """Time passes (the coordinator's running time, its inbox drained): who has been silent for too long?"""
        self._now = now
        effects: list[Effect] = []
        for member in self.members.silent(now):
            effects += self._lose(member, f"silent for {now - member.seen:.1f} s")
        while self._suspects and self._suspects[0][0] <= now:
            _, slot = self._suspects.popleft()
            self.leases.requeue(slot)
        effects += self._serve()
        self._requests.answered(effects)
        return effects

    def lost(self, node: NodeId, reason: str, now: float) -> list[Effect]:
        """The transport lost the session with `node`."""
        self._now = now
        member = self.members.members.get(node)
        effects = [] if member is None else self._lose(member, reason)
        self._requests.answered(effects)
        return effects

    def fail(self, kind: str, reason: str, trace: str) -> list[Effect]:
        """The job cannot go on; everyone is told, once."""
        if self.failure is not None:
            return []
        self.state = "failed"
        self.failure = Abort(self.generation, kind, reason, trace)
        return [Send(node, self.failure) for node in self.members.members]

    # ------------------------------------------------------------ membership

    def _register(self, sender: NodeId, message: Register) -> list[Effect]:
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
        if not self.members.seen(sender, self._now):
            now = self._now
            self.members.add(
                Member(sender, message.role, message.name, message.pid, message.host, message.address, now, now)
            )
        welcome = Welcome(message.req, self.generation, self.incarnation, self.job, self.spec.heartbeat_s)
        effects.append(Send(sender, welcome))
        if message.role == "server":
            effects += self._place()
        return effects

    def _beat(self, sender: NodeId, beat: Beat) -> list[Effect]:
        known = self.members.seen(beat.node, self._now)
        effects: list[Effect] = [Send(sender, BeatAck(self.generation, self.state, known))]
        if self.failure is not None:
            return [*effects, Send(beat.node, self.failure)]
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
        if server not in self._owners:
            return effects
        before = self._applied.get(server)
        self._applied[server] = beat.applied
        if before == beat.applied < self.version:
            missing = [c for c in self._log if c.version > beat.applied][:_MAX_REPEATED_COMMITS]
            effects += [Send(server, self._committed(c)) for c in missing]
        for version in beat.kept:
            if version not in self.pins and version != self.version:
                effects.append(Send(server, Unpin(self.generation, self.incarnation, version)))
        low = min(self._applied.get(s, -2) for s in self._owners)
        while self._log and self._log[0].version <= low:
            self._log.popleft()
        return effects

    def _exited(self, message: Exited) -> list[Effect]:
        for member in list(self.members.members.values()):
            if member.name == message.name and member.pid == message.pid:
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return self._lose(member, how)
        return []

    def _lose(self, member: Member, why: str) -> list[Effect]:
        self.members.remove(member.node)
        self._requests.forget_waiting(member.node)
        self._prepare_waiting.pop(member.node, None)
        if member.role == "server" and member.node in self._owners and not self._over():
            return self.fail("lost", f"{member.name} is lost ({why}), and its blocks have no other copy", "")
        if member.role != "worker":
            return []
        if not member.left:
            self.totals.lost_workers += 1
        return self._part(member.node, lost=not member.left)

    def _part(self, worker: NodeId, *, lost: bool) -> list[Effect]:
        """A worker is gone, lost or in good order: what it had goes to others."""
        self._waiting.pop(worker, None)
        self._evaluating.pop(worker, None)
        self._attendance.leave(worker)
        revoked = self.leases.revoke(worker, lost=lost)
        for slot in revoked.sealed:
            self._doubt(slot)
        self.evaluations.revoke(worker)
        effects = self._claims.release(worker)
        if revoked.poisoned is not None:
            return effects + self._poison(*revoked.poisoned)
        return effects + self._release_phase_pins() + self._serve()

    def _doubt(self, slot: SlotId) -> None:
        """The holder of a sealed slot is gone; its pushes may still arrive.

        Where attempts are not interchangeable they would not count any more, unless the attempt was chosen before.
        """
        if not self._is_whole(slot.step):
            self._suspects.append((self._now + self.spec.grace_s, slot))
        elif self.gate.chosen(slot.step, slot.slot) is None:
            self.leases.requeue(slot)

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
        # A clean end in the middle of the job means that the others go on without this worker.
        self.members.leave(sender)
        return [Send(sender, Ok(message.req)), *self._part(sender, lost=False)]

    # ------------------------------------------------------------ model and placement

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
            self._owners = tuple(sorted(set(owners)))  # with few blocks, some servers have none
            effects.append(Write(PlacementRow(self.placement)))
            effects += [Send(s.node, self._assignment()) for s in servers]
        for node, req in self._prepare_waiting.items():
            effects.append(Send(node, Prepared(req, self.generation, self.incarnation, self.placement)))
        self._prepare_waiting.clear()
        return effects

    def _where(self, sender: NodeId, message: PlacementRequest) -> list[Effect]:
        if self.placement is None:
            return []
        return [Send(sender, Prepared(message.req, self.generation, self.incarnation, self.placement))]

    @property
    def whole(self) -> bool:
        """Whether a slot counts only as one whole attempt even in lock-step."""
        return self.model is None or not self.model.deterministic

    def _assignment(self) -> Assign:
        assert self.placement is not None
        assert self.model is not None
        return Assign(
            self.generation,
            self.incarnation,
            self.placement,
            self.model,
            self.blocks,
            self.whole,
            self.leases.hold,
        )

    def _plan(self) -> Plan:
        return Plan(self.generation, tuple(self.schedule.segments), self._final)

    # ------------------------------------------------------------ phases, stopping

    def _declare(self, sender: NodeId, message: Declare) -> list[Effect]:
        known, new = self.evaluations.validators, message.validator
        name = self.members.members[sender].name
        if new.number > len(known):
            raise MismatchError(f"{name} declared validation {new.number}, but only {len(known)} are known before it")
        if new.number == len(known):
            known.append(new)
        elif new != known[new.number]:
            raise MismatchError(
                f"{name} declared validation {new.number} as {new}, "
                f"others as {known[new.number]}: every worker must run the same script"
            )
        self._declared[sender] = max(self._declared.get(sender, 0), new.number + 1)
        return [Send(sender, Ok(message.req))]

    def _begin_phase(self, sender: NodeId, message: BeginPhase) -> list[Effect]:
        if self.state == "finished":
            self._attendance.leave(sender)
            reply = PhaseBegun(message.req, self.generation, None)
            return [Send(sender, reply), *self._release_phase_pins()]
        assert self.job is not None
        number = message.phase.number
        segment = self.phases.begin(message.phase, self.job, self.members.members[sender].name)
        self._attendance.enter(sender, number)
        effects: list[Effect] = []
        if segment is not None:
            effects.append(Write(segment))
            effects += [Send(s, self._plan()) for s in self._owners]
        effects.append(Send(sender, PhaseBegun(message.req, self.generation, self.phases.phases[number].segment)))
        if segment is not None:
            effects += self._end_phase_if_done() + self._serve()
        return effects + self._release_phase_pins()

    def _stop(self, sender: NodeId, message: Stop) -> list[Effect]:
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        phase = self.phases.open
        self.stop_reason = self.stop_reason or message.reason
        if self.state == "finished" or phase is None:
            self.state = "finished"
            return effects + self._serve()
        end = self.watermark.low if message.at_once else message.step + 1
        if not message.at_once and self.schedule.window(self.watermark.low) != 0:
            # With a window, commits are not in step order: what is leased is still computed.
            end = max(end, self.leases.highest_step + 1)
        segment = self.phases.end_at(max(end, self.watermark.low))
        if segment is not None:
            self._closing = segment
            effects.append(Write(segment))
        effects += [Send(ls.worker, Revoke(self.generation, ls.fence)) for ls in self.leases.beyond(phase.end)]
        self.gate.drop_beyond(phase.end)
        return effects + self._end_phase_if_done() + self._serve()

    def _end_phase_if_done(self) -> list[Effect]:
        phase = self.phases.open
        if phase is None or self.version < 0 or self.watermark.low < phase.end:
            return []
        phase.end_version = self.version
        self.pins.add(self.version, f"phase {phase.spec.number}")
        self._pinned_phases.append(phase.spec.number)
        effects: list[Effect] = []
        if self.stop_reason is not None:
            self.state = "finished"
        if self._closing is not None:
            # Servers may hold slots of steps that will not be; with this version they can let go of them.
            self.schedule.append(self._closing)
            self._final = self.version
            effects += [Send(s, self._plan()) for s in self._owners]
        self._open_rounds(last=True)
        return effects

    def _phase_over(self, phase: Phase) -> bool:
        """Whether workers may leave a phase: all its steps are committed, and its last version is validated."""
        end = phase.end_version
        return end is not None and not any(
            r.validator.every and r.version <= end for r in self.evaluations.rounds.values()
        )

    def _release_phase_pins(self) -> list[Effect]:
        """The last version of a phase is kept until every live worker in it has gone on."""
        effects: list[Effect] = []
        if self._pinned_phases:
            lowest = self._attendance.lowest(default=len(self.phases.phases))
            for number in [n for n in self._pinned_phases if n < lowest]:
                self._pinned_phases.remove(number)
                version = self.phases.phases[number].end_version
                assert version is not None
                effects += self._unpin(version, f"phase {number}")
        return effects

    def _unpin(self, version: int, reason: str) -> list[Effect]:
        if not self.pins.discard(version, reason):
            return []
        if version == self.version:
            # It is readable anyway, and may be needed again for another reason: say so with the next commit.
            self._unpin_next = version
            return []
        return [Send(s, Unpin(self.generation, self.incarnation, version)) for s in self._owners]

    # ------------------------------------------------------------ turns

    def _turn(self, sender: NodeId, turn: Turn) -> list[Effect]:
        if turn.evaluation >= len(self.evaluations.validators):
            raise MismatchError(f"validation {turn.evaluation} was never declared")
        self._waiting.pop(sender, None)
        self._evaluating.pop(sender, None)
        if turn.phase >= 0:
            self._attendance.enter(sender, turn.phase)
        effects: list[Effect] = []
        if turn.incarnation == self.incarnation:
            if turn.sealed is not None and self.leases.seal(turn.sealed.fence, sender) is not None:
                self.gate.sealed(turn.sealed)
                effects += self._progress(turn.sealed.step, turn.sealed.slot, turn.sealed.fence)
            if turn.evaluated is not None:
                effects += self._evaluated(turn.evaluated)
        freed = False
        if turn.abandoned is not None:
            freed = self.leases.abandon(turn.abandoned) is not None
            freed |= self.evaluations.abandon(turn.abandoned) is not None
        # A worker that asks has nothing in hand: a lease of which it never heard goes to somebody else.
        freed |= self.leases.abandon_open(sender)
        freed |= self.evaluations.revoke(sender)
        if freed:
            effects += self._serve()
        if self.failure is not None or self.members.members[sender].left:
            return effects
        reply = self._offer(sender, turn)
        if reply is not None:
            effects.append(Send(sender, reply))
        elif turn.evaluation >= 0:
            self._evaluating[sender] = turn
        else:
            self._waiting[sender] = turn
        return effects

    def _give_back(self, sender: NodeId, message: GiveBack) -> list[Effect]:
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        if self.leases.abandon(message.fence) is not None:
            effects += self._serve()
        return effects

    def _serve(self) -> list[Effect]:
        """Something became available: offer it to those who wait, in the order in which they asked."""
        effects: list[Effect] = []
        for node, turn in list(self._evaluating.items()):
            reply = self._offer(node, turn)
            if reply is not None:
                del self._evaluating[node]
                effects.append(Send(node, reply))
        while self._waiting:
            # Workers in this queue are all in the open phase: where the first gets nothing, nobody does.
            node, turn = next(iter(self._waiting.items()))
            reply = self._offer(node, turn)
            if reply is None:
                return effects
            del self._waiting[node]
            effects.append(Send(node, reply))
        if self.failure is None:
            lease = self.leases.recall(self.watermark.low, self.version >= 0)
            if lease is not None:
                effects.append(Send(lease.worker, Revoke(self.generation, lease.fence)))
        return effects

    def _offer(self, node: NodeId, turn: Turn) -> Message | None:
        """What `node` gets now: a validation slot first, then a training slot, or the end of its phase."""
        if self.failure is not None or self.placement is None:
            return None
        lead = self.members.lead() == node
        if self.version < 0:
            return self._offer_training(node, turn, lead)
        if turn.evaluation >= 0:
            known = self._request_evaluation(turn.evaluation)
            if known is not None:
                return EvalOver(turn.req, self.generation, turn.evaluation, *known)
        declared = self._declared.get(node, 0)
        if self.evaluations.waiting(declared):
            fence = self.leases.fence()
            granted = self.evaluations.grant(node, fence, declared)
            assert granted is not None
            round_, slot = granted
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
        phases = self.phases.phases
        if self.version >= 0:
            number = min(turn.phase, len(phases) - 1) if self.state == "finished" else turn.phase
            phase = phases[number] if 0 <= number < len(phases) else None
            if (phase is None and self.state == "finished") or (phase is not None and self._phase_over(phase)):
                return self._over_message(turn, phase, lead)
        open_ = self.phases.open
        mine = open_ is not None and open_.spec.number == turn.phase and turn.evaluation < 0
        end = open_.end if open_ is not None and mine else 0  # step 0 is beyond 0, the initial weights are not
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
        if not self._current(message.incarnation, message.epoch) or not self._is_open(message.step):
            return []
        chosen = self.gate.chosen(message.step, message.slot)
        if chosen is not None:
            return [Send(sender, Choose(self.generation, self.incarnation, message.step, message.slot, chosen))]
        self.gate.receipt(sender, message)
        return self._progress(message.step, message.slot, message.fence)

    def _ready(self, sender: NodeId, message: Ready) -> list[Effect]:
        if not self._current(message.incarnation, message.epoch) or not self._is_open(message.step):
            return []
        self.gate.ready(sender, message, whole=self._is_whole(message.step))
        return self._progress(message.step)

    def _summed(self, sender: NodeId, message: Summed) -> list[Effect]:
        if not self._current(message.incarnation, message.epoch):
            return []
        moved = self.leases.summed(sender, message.step, message.count, len(self._owners))
        return self._serve() if moved else []

    def _current(self, incarnation: int, epoch: int) -> bool:
        return self.placement is not None and (incarnation, epoch) == (self.incarnation, self.placement.epoch)

    def _is_open(self, step: int) -> bool:
        """Whether `step` may still be committed."""
        if step == INIT_STEP:
            return self.version < 0
        phase = self.phases.open
        return phase is not None and phase.start <= step < phase.end and not self.watermark.has(step)

    def _is_whole(self, step: int) -> bool:
        return self.whole or step == INIT_STEP or self.schedule.window(step) != 0

    def _progress(self, step: int, slot: int = -1, fence: Fence | None = None) -> list[Effect]:
        """Choose the attempt that news came of, and commit, as far as what is known of `step` allows."""
        if not self._is_open(step):
            return []
        servers, slots, whole = self._owners, self.schedule.num_slots(step), self._is_whole(step)
        effects: list[Effect] = []
        if whole and slots > 1 and fence is not None:
            if self.gate.choose(step, slot, fence, servers, self.leases):
                choose = Choose(self.generation, self.incarnation, step, slot, fence)
                effects += [Send(s, choose) for s in servers]
            return effects
        if step != INIT_STEP and self.schedule.window(step) == 0 and step != self.watermark.low:
            return effects
        passed = self.gate.passed(step, slots, servers, whole=whole, valid=self.leases)
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
        if self.evaluations.due(version, last=False):
            self.pins.add(version, "evaluation")
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
        effects += [Send(s, self._committed(commit)) for s in self._owners]
        if self._unpin_next is not None and self._unpin_next not in self.pins:
            unpin = Unpin(self.generation, self.incarnation, self._unpin_next)
            effects += [Send(s, unpin) for s in self._owners]
        self._unpin_next = None
        self.gate.forget(step)
        won = set(commit.fences)
        self.totals.wasted_slots += sum(lease.fence not in won for lease in self.leases.committed(step))
        self._open_rounds(last=False)
        return effects + self._end_phase_if_done() + self._serve()

    def _committed(self, commit: Commit) -> Committed:
        return Committed(self.generation, commit, commit.version - 1 in self.pins)

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

    def _open_rounds(self, *, last: bool) -> None:
        for validator in self.evaluations.due(self.version, last=last):
            if self.evaluations.open(validator, self.version, self.watermark.low) is not None:
                self.pins.add(self.version, "evaluation")

    def _request_evaluation(self, number: int) -> tuple[int, dict[str, float]] | None:
        """The result that somebody waits for; opens a round for it where there is none."""
        known = self.evaluations.latest.get(number)
        if known is None and not any(r.validator.number == number for r in self.evaluations.rounds.values()):
            validator = self.evaluations.validators[number]
            if self.evaluations.open(validator, self.version, self.watermark.low) is not None:
                self.pins.add(self.version, "evaluation")
            known = self.evaluations.latest.get(number)
        return known

    def _evaluated(self, report: Evaluated) -> list[Effect]:
        ended = self.evaluations.report(report)
        if ended is None:
            return []
        row = EvaluationRow(self.incarnation, ended.version, ended.step, ended.validator.name, ended.metrics())
        effects: list[Effect] = [Write(row)]
        if not self.evaluations.concerns(ended.version):
            effects += self._unpin(ended.version, "evaluation")
        return effects + self._serve()


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
    for name in ("optimizer", "clip_norm", "deterministic"):
        mine, theirs = getattr(new, name), getattr(known, name)
        if mine != theirs:
            raise MismatchError(f"{worker} prepared {name}={mine}, others {name}={theirs}: every worker must agree")
