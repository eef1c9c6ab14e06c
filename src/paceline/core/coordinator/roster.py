"""The roster: who takes part, who is lost, where the blocks are."""

from __future__ import annotations

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.leasing import Desk
from paceline.core.coordinator.membership import Member
from paceline.core.coordinator.placement import Placing
from paceline.core.coordinator.recovery import Recovery
from paceline.core.coordinator.requests import RequestBook
from paceline.core.effects import Effect, JobFact, ModelFact, PlacementFact, Send
from paceline.core.layout import cut
from paceline.core.placement_plan import balance, spread
from paceline.errors import MismatchError, SlotPoisonedError
from paceline.messages import (
    Abort,
    Beat,
    BeatAck,
    Bye,
    Exited,
    NotLoaded,
    Ok,
    PlacementRequest,
    Prepare,
    Prepared,
    Register,
    Unpin,
    Welcome,
)
from paceline.types import (
    INIT_STEP,
    ModelSpec,
    NodeId,
    Placement,
    SlotId,
)

_MAX_REPEATED_COMMITS = 1024
_PATIENCE = 3  # times the usual silence, with a server whose blocks nobody else has


class Roster:
    """Members, their model and their placement."""

    def __init__(
        self,
        books: Books,
        commits: Commits,
        desk: Desk,
        recovery: Recovery,
        requests: RequestBook,
        placing: Placing,
    ) -> None:
        self._job = books
        self._commits = commits
        self._desk = desk
        self._recovery = recovery
        self._requests = requests
        self._crew: set[str] = set()
        self._placing = placing
        self._prepare_waiting: dict[NodeId, int] = {}
        self._applied: dict[NodeId, int] = {}
        self._refused: set[NodeId] = set()
        self._behind: dict[NodeId, tuple[tuple[int, int, int], float]] = {}
        recovery.lose, recovery.forget = self._let_go, requests.forget_all_waiting
        placing.lose, placing.gone = self.lose, recovery.gone

    def register(self, sender: NodeId, message: Register) -> list[Effect]:
        """A process takes part (again), and tells what it has."""
        job = self._job
        if job.failure is not None:
            return [Send(sender, job.failure)]
        effects: list[Effect] = []
        if message.job is not None:
            if job.job is None:
                job.job = message.job
                effects.append(job.fact(JobFact(message.job)))
            elif (message.job.seed, message.job.mode) != (job.job.seed, job.job.mode):
                problem = (
                    f"{message.name} joined with seed={message.job.seed}, mode={message.job.mode!r}; "
                    f"the job has seed={job.job.seed}, mode={job.job.mode!r}"
                )
                is_late = self._is_late(message.name)
                return self._refuse_late(sender, problem) if is_late else job.fail("script", problem, "")
            if self._recovery.is_ahead(message.progress):
                return self._recovery.send_back(sender)
            job.progress[sender] = max(job.progress.get(sender, -1), message.progress)
        if message.role == "server":
            effects += self._replace(sender, message)
        known = job.members.members.get(sender)
        if known is None or not known.start:  # new, or known only from the log
            late = self._is_late(message.name)
            if message.role == "worker":
                self._crew.add(message.name)
            job.members.add(
                Member(
                    sender,
                    message.role,
                    message.name,
                    message.start,
                    message.host,
                    message.address,
                    job.now,
                    job.now,
                    late=late,
                )
            )
        else:
            job.members.seen(sender, job.now)
        effects.append(
            Send(
                sender,
                Welcome(message.req, job.generation, job.incarnation, job.job, job.spec.heartbeat_s, job.spec.reach_s),
            )
        )
        if message.role == "server":
            self._placing.look(0.0)
            return effects + self._returned(sender, message) + self.place()
        again = self._requests.seen(sender, message, message.req)
        return effects + self._recovery.adopt(sender, message, again=again)

    def _is_late(self, name: str) -> bool:
        """Whether the job has begun without this worker. The first ones, as many as are wanted, begin it together."""
        job = self._job
        return job.version >= 0 and (job.restored or name in self._crew or len(self._crew) >= job.wanted_workers)

    def _replace(self, sender: NodeId, message: Register) -> list[Effect]:
        """A server that starts again under its name is not the one that held the blocks: that one is gone."""
        old = [m for m in self._job.members.by_role("server") if m.name == message.name and m.node != sender]
        effects: list[Effect] = []
        for member in old:
            effects += self.lose(member, "it was started again")
        return effects

    def _returned(self, server: NodeId, message: Register) -> list[Effect]:
        job = self._job
        if job.placement is None or server not in job.holders:
            return []
        if message.incarnation == job.incarnation and message.applied > job.version:
            member = job.members.members[server]
            return self.lose(member, f"it has version {message.applied}, the log ends at {job.version}")
        return self._recovery.heard(server, message)

    def refuse(self, sender: NodeId, problem: str) -> list[Effect]:
        """Workers disagree. One that came late to a running job is refused; else nobody knows who is right."""
        member = self._job.members.members.get(sender)
        if member is None or not member.late:
            return self._job.fail("script", problem, "")
        return self._refuse_late(sender, problem)

    def _refuse_late(self, sender: NodeId, problem: str) -> list[Effect]:
        self._refused.add(sender)
        return [Send(sender, Abort(self._job.generation, "script", problem)), *self._let_go(sender)]

    def failed(self, sender: NodeId, kind: str, trace: str) -> list[Effect]:
        """A role cannot go on, and so the job cannot; unless the role was refused."""
        if sender in self._refused:
            return []
        member = self._job.members.members.get(sender)
        return self._job.fail(kind, f"{member.name if member else sender} failed", trace)

    def _let_go(self, worker: NodeId) -> list[Effect]:
        """A worker goes, and that is no loss."""
        if self._job.members.remove(worker) is None:
            return []
        self._requests.forget_waiting(worker)
        self._prepare_waiting.pop(worker, None)
        return self._part(worker, lost=False)

    def beat(self, sender: NodeId, beat: Beat) -> list[Effect]:
        """A sign of life; a server that has missed something is told again."""
        known = self._job.members.seen(beat.node, self._job.now) and beat.node not in self._job.awaited
        effects: list[Effect] = [Send(sender, BeatAck(self._job.generation, self._job.state, known))]
        if self._job.failure is not None:
            return [*effects, Send(beat.node, self._job.failure)]
        member = self._job.members.members.get(beat.node)
        # Before every server is heard it is not known what they must keep.
        speaks = member is not None and sender == member.node and not self._job.awaited
        if member is not None and speaks and member.role == "server" and self._job.placement is not None:
            effects += self._repair(member.node, beat)
        return effects

    def _repair(self, server: NodeId, beat: Beat) -> list[Effect]:
        """Say again what a server has missed. A lag that one beat shows may be on its way; two beats mean it is not."""
        effects: list[Effect] = []
        assert self._job.placement is not None
        if (beat.incarnation, beat.epoch) != (self._job.incarnation, self._job.placement.epoch):
            self._applied.pop(server, None)
            effects += [Send(server, self._job.assignment()), Send(server, self._job.plan())]
            if beat.incarnation == self._job.incarnation and server in self._job.holders and beat.applied >= -1:
                effects += self._missing(server, beat.applied)  # it enters when it has them
            return effects + self._late(server, beat)
        if beat.revision < self._job.schedule.revision:
            effects.append(Send(server, self._job.plan()))
        if server not in self._job.holders:
            return effects
        before = self._applied.get(server)
        self._applied[server] = beat.applied
        if before == beat.applied < self._job.version:
            effects += self._missing(server, beat.applied)
        for version in beat.kept:
            if version not in self._job.pins and version != self._job.version:
                effects.append(Send(server, Unpin(self._job.generation, self._job.incarnation, version)))
        low = min(self._applied.get(s, -2) for s in self._job.holders)
        while self._job.log and self._job.log[0].version <= low:
            self._job.log.popleft()
        return effects + self._late(server, beat)

    def _missing(self, server: NodeId, applied: int) -> list[Effect]:
        """Commits after version `applied`, again."""
        missing = [c for c in self._job.log if c.version > applied][:_MAX_REPEATED_COMMITS]
        return [Send(server, self._job.announcement(c)) for c in missing]

    def _late(self, server: NodeId, beat: Beat) -> list[Effect]:
        """A server that is heard but does not hear, for too long, is as good as lost: sooner if it can be spared."""
        job = self._job
        assert job.placement is not None
        at = beat.incarnation, beat.epoch, beat.applied
        if server not in job.holders:
            return []
        if at >= (job.incarnation, job.placement.epoch, job.version):
            self._behind.pop(server, None)
            return []
        since = self._behind.setdefault(server, (at, job.now))
        if since[0] != at:
            self._behind[server] = at, job.now
        elif job.now - since[1] > job.spec.heartbeat_timeout_s * (1 if self._placing.can_spare(server) else _PATIENCE):
            return self.lose(job.members.members[server], "it does not hear what it is told")
        return []

    def exited(self, message: Exited) -> list[Effect]:
        """The engine saw a process end."""
        for member in list(self._job.members.members.values()):
            if member.name == message.name and member.start == message.start:
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return self.lose(member, how)
        return []

    def lose(self, member: Member, why: str) -> list[Effect]:
        """`member` is gone; what it had goes to others."""
        self._job.members.remove(member.node)
        self._requests.forget_waiting(member.node)
        self._prepare_waiting.pop(member.node, None)
        self._behind.pop(member.node, None)
        if member.role == "server" and member.node in self._job.holders and self._job.failure is None:
            moved = self._placing.lost(member, why)
            if moved is not None:
                return moved + self._recovery.gone(member.node)
            if self._job.spec.rewinds:
                return self._recovery.rewind(f"{member.name} is lost ({why})") + self.place()
            if not self._job.is_over():
                return self._job.fail("lost", f"{member.name} is lost ({why}), and its blocks have no other copy", "")
        if member.role != "worker":
            return []
        if not member.left:
            self._job.totals.lost_workers += 1
        return self._part(member.node, lost=not member.left)

    def _part(self, worker: NodeId, *, lost: bool) -> list[Effect]:
        """A worker is gone, lost or in good order: what it had goes to others."""
        self._desk.forget(worker)
        self._placing.reach.forget(worker)
        self._job.pace.forget(worker)
        self._job.progress.pop(worker, None)
        self._job.attendance.leave(worker)
        revoked = self._job.leases.revoke(worker, lost=lost)
        for slot in revoked.sealed:
            self._doubt(slot)
        self._job.evaluations.revoke(worker)
        effects = self._job.claims.release(worker)
        if revoked.poisoned is not None:
            return effects + self._poison(*revoked.poisoned)
        return effects + self._commits.release_phase_pins() + self._job.serve()

    def _doubt(self, slot: SlotId) -> None:
        """The holder of a sealed slot is gone; its pushes may still arrive.

        Where attempts are not interchangeable they would not count any more, unless the attempt was chosen before.
        """
        if not self._job.is_whole(slot.step):
            self._job.suspects.append((self._job.now + self._job.spec.grace_s, slot))
        elif self._job.gate.chosen(slot.step, slot.slot) is None:
            self._job.leases.requeue(slot)

    def _poison(self, slot: SlotId, holders: tuple[NodeId, ...]) -> list[Effect]:
        samples = "the initial weights"
        if slot.step != INIT_STEP:
            segment, at = self._job.schedule.segment(slot.step), self._job.schedule.place(slot.step)
            start = at.offset + slot.slot * segment.batch_size
            stop = min(start + segment.batch_size, at.offset + at.samples)
            samples = f"positions {start}..{stop - 1} of epoch {at.epoch}"
        error = SlotPoisonedError(slot.step, slot.slot, holders, samples)
        return self._job.fail("lost", str(error), "")

    def bye(self, sender: NodeId, message: Bye) -> list[Effect]:
        """A worker's script has ended well."""
        # A clean end in the middle of the job means that the others go on without this worker.
        self._job.members.leave(sender)
        return [Send(sender, Ok(message.req)), *self._part(sender, lost=False)]

    def prepare(self, sender: NodeId, message: Prepare) -> list[Effect]:
        """A worker's model; answered once the blocks are placed."""
        name = self._job.members.members[sender].name
        effects: list[Effect] = []
        if self._job.model is None:
            self._job.model = message.spec
            self._job.blocks = cut(message.spec.tensors)
            effects.append(self._job.fact(ModelFact(message.spec)))
        else:
            _compare_models(self._job.model, message.spec, name)
        self._prepare_waiting[sender] = message.req
        return effects + self.place()

    def not_loaded(self, message: NotLoaded) -> list[Effect]:
        """A server could not load its blocks: the job goes back further, and since everyone is there, at once."""
        effects = self._recovery.not_loaded(message)
        return effects + self.place() if effects else []

    def place(self) -> list[Effect]:
        """Place the blocks once the model is known and every server is there; answer who waits for it."""
        job = self._job
        effects: list[Effect] = []
        if job.model is None:
            return effects
        if job.placement is None:
            leaving = job.draining
            servers = [s for s in job.members.by_role("server") if s.node not in leaving]
            if len(servers) < job.wanted_servers:
                return effects
            job.epoch += 1
            nodes = [s.node for s in servers]
            owners = balance(job.blocks, nodes)
            backups = spread(job.blocks, owners, nodes, job.spec.replicas)
            placement = Placement(job.epoch, owners, {s.node: s.address or "" for s in servers}, backups)
            job.place(placement)
            self._applied.clear()
            effects.append(job.fact(PlacementFact(placement)))
            for server in servers:
                effects += [Send(server.node, job.assignment()), Send(server.node, job.plan())]
            effects += job.serve()
        placed = job.placement
        assert placed is not None
        for node, req in self._prepare_waiting.items():
            effects.append(Send(node, Prepared(req, job.generation, job.incarnation, placed)))
        self._prepare_waiting.clear()
        return effects

    def where(self, sender: NodeId, message: PlacementRequest) -> list[Effect]:
        """Where the blocks are now."""
        if self._job.placement is None:
            return []
        return [Send(sender, Prepared(message.req, self._job.generation, self._job.incarnation, self._job.placement))]


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
