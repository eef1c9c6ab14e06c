"""The roster: who takes part, who is lost, where the blocks are."""

from __future__ import annotations

from paceline.core.books import Books
from paceline.core.commits import Commits
from paceline.core.desk import Desk
from paceline.core.effects import Effect, PlacementRow, Send, Write
from paceline.core.layout import cut
from paceline.core.membership import Member
from paceline.core.placement import balance
from paceline.core.requests import RequestBook
from paceline.errors import MismatchError, SlotPoisonedError
from paceline.messages import (
    Beat,
    BeatAck,
    Bye,
    Exited,
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


class Roster:
    """Members, their model and their placement."""

    def __init__(self, books: Books, commits: Commits, desk: Desk, requests: RequestBook) -> None:
        self._job = books
        self._commits = commits
        self._desk = desk
        self._requests = requests
        self._prepare_waiting: dict[NodeId, int] = {}
        self._applied: dict[NodeId, int] = {}

    def register(self, sender: NodeId, message: Register) -> list[Effect]:
        """A process takes part (again)."""
        if self._job.failure is not None:
            return [Send(sender, self._job.failure)]
        effects: list[Effect] = []
        if message.job is not None:
            if self._job.job is None:
                self._job.job = message.job
            elif (message.job.seed, message.job.mode) != (self._job.job.seed, self._job.job.mode):
                return self._job.fail(
                    "script",
                    f"{message.name} joined with seed={message.job.seed}, mode={message.job.mode!r}; "
                    f"the job has seed={self._job.job.seed}, mode={self._job.job.mode!r}",
                    "",
                )
        if not self._job.members.seen(sender, self._job.now):
            now = self._job.now
            self._job.members.add(
                Member(sender, message.role, message.name, message.pid, message.host, message.address, now, now)
            )
        welcome = Welcome(
            message.req, self._job.generation, self._job.incarnation, self._job.job, self._job.spec.heartbeat_s
        )
        effects.append(Send(sender, welcome))
        if message.role == "server":
            effects += self._place()
        return effects

    def beat(self, sender: NodeId, beat: Beat) -> list[Effect]:
        """A sign of life; a server that has missed something is told again."""
        known = self._job.members.seen(beat.node, self._job.now)
        effects: list[Effect] = [Send(sender, BeatAck(self._job.generation, self._job.state, known))]
        if self._job.failure is not None:
            return [*effects, Send(beat.node, self._job.failure)]
        member = self._job.members.members.get(beat.node)
        if member is not None and member.role == "server" and self._job.placement is not None:
            effects += self._repair(member.node, beat)
        return effects

    def _repair(self, server: NodeId, beat: Beat) -> list[Effect]:
        """Say again what a server has missed. A lag that one beat shows may be on its way; two beats mean it is not."""
        effects: list[Effect] = []
        if beat.epoch == 0:
            effects.append(Send(server, self._job.assignment()))
        if beat.segments < len(self._job.schedule.segments):
            effects.append(Send(server, self._job.plan()))
        if server not in self._job.owners:
            return effects
        before = self._applied.get(server)
        self._applied[server] = beat.applied
        if before == beat.applied < self._job.version:
            missing = [c for c in self._job.log if c.version > beat.applied][:_MAX_REPEATED_COMMITS]
            effects += [Send(server, self._job.announcement(c)) for c in missing]
        for version in beat.kept:
            if version not in self._job.pins and version != self._job.version:
                effects.append(Send(server, Unpin(self._job.generation, self._job.incarnation, version)))
        low = min(self._applied.get(s, -2) for s in self._job.owners)
        while self._job.log and self._job.log[0].version <= low:
            self._job.log.popleft()
        return effects

    def exited(self, message: Exited) -> list[Effect]:
        """The engine saw a process end."""
        for member in list(self._job.members.members.values()):
            if member.name == message.name and member.pid == message.pid:
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return self.lose(member, how)
        return []

    def lose(self, member: Member, why: str) -> list[Effect]:
        """`member` is gone; what it had goes to others."""
        self._job.members.remove(member.node)
        self._requests.forget_waiting(member.node)
        self._prepare_waiting.pop(member.node, None)
        if member.role == "server" and member.node in self._job.owners and not self._job.is_over():
            return self._job.fail("lost", f"{member.name} is lost ({why}), and its blocks have no other copy", "")
        if member.role != "worker":
            return []
        if not member.left:
            self._job.totals.lost_workers += 1
        return self._part(member.node, lost=not member.left)

    def _part(self, worker: NodeId, *, lost: bool) -> list[Effect]:
        """A worker is gone, lost or in good order: what it had goes to others."""
        self._desk.forget(worker)
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
        if self._job.model is None:
            self._job.model = message.spec
            self._job.blocks = cut(message.spec.tensors)
        else:
            _compare_models(self._job.model, message.spec, name)
        self._prepare_waiting[sender] = message.req
        return self._place()

    def _place(self) -> list[Effect]:
        """Place the blocks once the model is known and every server is there; answer who waits for it."""
        effects: list[Effect] = []
        if self._job.model is None:
            return effects
        if self._job.placement is None:
            servers = self._job.members.by_role("server")
            if len(servers) < self._job.spec.servers:
                return effects
            owners = balance(self._job.blocks, [s.node for s in servers])
            self._job.placement = Placement(1, owners, {s.node: s.address or "" for s in servers})
            self._job.owners = tuple(sorted(set(owners)))  # with few blocks, some servers have none
            effects.append(Write(PlacementRow(self._job.placement)))
            effects += [Send(s.node, self._job.assignment()) for s in servers]
        for node, req in self._prepare_waiting.items():
            effects.append(Send(node, Prepared(req, self._job.generation, self._job.incarnation, self._job.placement)))
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
