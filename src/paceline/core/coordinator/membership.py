"""Membership: which processes take part. They register, are lost, leave, or are refused. Rules 7 and 10."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    Admitted,
    Evicted,
    JobFailed,
    MemberRemoved,
    Output,
    ServerJoined,
    ServersWanted,
    WorkerGone,
    WorkerJoined,
    WorkerRewound,
)
from paceline.core.coordinator.requests import Requests
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.members import Member
from paceline.core.effects import History, ScaleFact, Send
from paceline.errors import MismatchError
from paceline.messages import Abort, Bye, Exited, Failed, Ok, Position, Refused, Register, Scale, Welcome
from paceline.types import NodeId, name_of


class Membership:
    """Owns the table of members. `lost_workers` counts workers that were lost in the middle of their script."""

    def __init__(self, tables: Tables, segments: Segments, requests: Requests, lost_workers: int = 0) -> None:
        self.lost_workers = lost_workers
        self._attendance = tables.attendance
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._segments = segments
        self._requests = requests
        self._names: set[str] = set()
        self._refused: set[NodeId] = set()

    def restore(self, history: History) -> list[Output]:
        """Take over how many processes the job wants. Members register again."""
        self._members.restore(history)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Keep the members, except servers that are known only from the log: they hold no block now."""
        self._members.remove_unheard()
        return []

    def expect(self, server: NodeId, address: str) -> None:
        """Give a holder of blocks that is known from the log a full new term to register."""
        now = self._clock.now
        self._members.add(Member(server, "server", name_of(server), 0, "", address, now, now))

    # ------------------------------------------------------------ joining

    def register(self, sender: NodeId, message: Register) -> list[Output]:
        """A process registers, for the first time or again, and reports what it has."""
        if self._identity.failure is not None:
            return [Send(sender, self._identity.failure)]
        out: list[Output] = []
        if message.job is not None:
            try:
                out += self._identity.agree(message.job, message.name)
            except MismatchError as error:
                is_late = self._is_late(message.name)
                return self._refuse_late(sender, str(error)) if is_late else [JobFailed("script", str(error))]
            if self._segments.is_ahead(message.progress):
                return [WorkerRewound(sender)]
            self._attendance.advance(sender, message.progress)
        if message.role == "server":
            # A server that was started again does not have the blocks of the earlier process with its name.
            for member in self._members.by_role("server"):
                if member.name == message.name and member.node != sender:
                    out.append(Evicted(member, "it was started again"))
        out.append(Admitted(sender, message))
        return out

    def admit(self, event: Admitted) -> list[Output]:
        """Make a process a member, and welcome it."""
        sender, message, now = event.node, event.message, self._clock.now
        known = self._members.members.get(sender)
        if known is None or not known.start:  # new, or known only from the log
            late = self._is_late(message.name)
            if message.role == "worker":
                self._names.add(message.name)
            address = message.address
            self._members.add(
                Member(sender, message.role, message.name, message.start, message.host, address, now, now, late=late)
            )
        else:
            self._members.seen(sender, now)
        spec, generation, job = self._identity.spec, self._identity.generation, self._identity.job
        welcome = Welcome(message.req, generation, self._incarnation.number, job, spec.heartbeat_s, spec.reach_s)
        if message.role == "server":
            return [Send(sender, welcome), ServerJoined(sender, message)]
        again = not self._requests.note(sender, message, message.req)
        return [Send(sender, welcome), WorkerJoined(sender, message, again)]

    def _is_late(self, name: str) -> bool:
        """Whether a worker of that name joins late: the job has begun, and does not wait for this worker."""
        if self._log.version < 0:
            return False
        is_full = len(self._names) >= self._members.wanted_workers
        return self._identity.restored or name in self._names or is_full

    def scale(self, sender: NodeId, message: Scale) -> list[Output]:
        """Change the number of workers or servers that the job wants; a user or the launcher asks for it."""
        replicas = self._identity.spec.replicas
        if 0 < message.servers <= replicas:
            problem = f"{replicas + 1} servers are needed for the replicas"
            return [Send(sender, Refused(message.req, "replicas", problem))]
        self._members.want(max(1, message.workers or self._members.wanted_workers), message.servers)
        fact = ScaleFact(self._members.wanted_workers, self._members.wanted_servers)
        return [fact, Send(sender, Ok(message.req)), ServersWanted()]

    # ------------------------------------------------------------ leaving

    def bye(self, sender: NodeId, message: Bye) -> list[Output]:
        """A worker leaves: its script has ended without an error. The other workers continue."""
        self._members.leave(sender)
        return [Send(sender, Ok(message.req)), WorkerGone(sender, lost=False)]

    def exited(self, sender: NodeId, message: Exited) -> list[Output]:
        """Evict a process whose end the launcher reports."""
        ok = Send(sender, Ok(message.req))
        for member in self._members.members.values():
            if member.name == message.name and member.start == message.start:
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return [ok, Evicted(member, how)]
        return [ok]

    def session_lost(self, node: NodeId, reason: str) -> list[Output]:
        """Evict `node`: the transport lost the session with it."""
        member = self._members.members.get(node)
        return [] if member is None else [Evicted(member, reason)]

    def tick(self) -> list[Output]:
        """Evict the members that have been silent for longer than the heartbeat time-out."""
        now = self._clock.now
        return [
            Evicted(member, f"silent for {now - member.seen:.1f} s; PACELINE_HEARTBEAT_TIMEOUT_S raises the limit")
            for member in self._members.expire(now)
        ]

    def evict(self, event: Evicted) -> list[Output]:
        """Remove a lost member; the other machines give its work and its blocks to other members."""
        member = event.member
        self._members.remove(member.node)
        out: list[Output] = [MemberRemoved(member, event.why)]
        if member.role == "worker":
            if not member.left:
                self.lost_workers += 1
            out.append(WorkerGone(member.node, lost=not member.left))
        return out

    def send_back(self, event: WorkerRewound) -> list[Output]:
        """Tell a worker to start again: its script is further than the job. It does not count as lost."""
        reason = f"the job went back to version {self._log.version}"
        abort = Abort(self._identity.generation, "rewound", reason)
        return [Send(event.worker, abort), *self._release(event.worker, reason)]

    def _release(self, worker: NodeId, why: str) -> list[Output]:
        member = self._members.remove(worker)
        return [] if member is None else [MemberRemoved(member, why), WorkerGone(worker, lost=False)]

    # ------------------------------------------------------------ workers that disagree, roles that fail

    def refuse(self, sender: NodeId, problem: str) -> list[Output]:
        """Handle a worker that disagrees with the others: refuse it if it joined late, otherwise fail the job."""
        member = self._members.members.get(sender)
        if member is None or not member.late:
            return [JobFailed("script", problem)]
        return self._refuse_late(sender, problem)

    def _refuse_late(self, sender: NodeId, problem: str) -> list[Output]:
        self._refused.add(sender)
        return [Send(sender, Abort(self._identity.generation, "script", problem)), *self._release(sender, problem)]

    def failed(self, sender: NodeId, message: Failed) -> list[Output]:
        """Fail the job because a process has failed, unless that process was refused before."""
        ok = Send(sender, Ok(message.req))
        if sender in self._refused:
            return [ok]
        return [ok, JobFailed(message.kind, f"{self._members.name(sender)} failed", message.trace)]
