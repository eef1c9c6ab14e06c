"""Membership: which processes take part. They register, are lost, leave, or are refused. Rules 7, 10 and 14."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    Admitted,
    Evicted,
    JobFailed,
    MembersRemoved,
    Output,
    SamplersWanted,
    ServerJoined,
    ServersWanted,
    WorkerJoined,
    WorkerRewound,
    WorkersGone,
    WorkFreed,
)
from paceline.core.coordinator.host_loss import is_cut_off, lost_with, silence_s
from paceline.core.coordinator.machine_kinds import other_kind, refusal
from paceline.core.coordinator.mates import mates
from paceline.core.coordinator.requests import Requests
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.members import Member
from paceline.core.effects import DrainFact, History, ScaleFact, Send
from paceline.errors import MismatchError
from paceline.messages import (
    Abort,
    Bye,
    Drain,
    Exited,
    Failed,
    HostLost,
    Ok,
    Position,
    Refused,
    Register,
    Scale,
    Welcome,
)
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
        self._starts: dict[str, int] = {}  # the highest start number of each name that has registered
        self._refused: set[NodeId] = set()

    def restore(self, history: History) -> list[Output]:
        """Take over how many processes the job wants, and which hosts drain. Members register again."""
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
        if message.start < self._starts.get(message.name, 0):
            return self._end_earlier(sender, message)
        self._starts[message.name] = message.start
        out: list[Output] = []
        if self._identity.spec.same_cpu:
            other = other_kind(self._members, message.role, message.name, message.fingerprint)
            if other is not None:
                return self._turn_away(sender, refusal(message.name, message.host, message.fingerprint, other))
        if message.job is not None:
            try:
                out += self._identity.agree(message.job, message.name)
            except MismatchError as error:
                is_late = self._is_late(message.name)
                return self._turn_away(sender, str(error)) if is_late else [JobFailed("script", str(error))]
            if self._segments.is_ahead(message.progress):
                return [WorkerRewound(sender)]
            self._attendance.advance(sender, message.progress)
        for member in self._members.named(message.name):
            # A server that was started again does not have the blocks of the earlier process with its name. A worker
            # that was started again has ended before: nobody reports its end if it was counted as lost (rule 13).
            if member.node != sender and (message.role == "server" or member.start < message.start):
                out.append(Evicted((member,), "it was started again"))
        out.append(Admitted(sender, message))
        return out

    def _end_earlier(self, sender: NodeId, message: Register) -> list[Output]:
        """End a process of which a later start takes part or has taken part: it was counted as lost (rule 13)."""
        reason = f"a later start of {message.name} takes part: this one was counted as lost"
        return [Send(sender, Abort(self._identity.generation, "lost", reason)), *self._release(sender, reason)]

    def admit(self, event: Admitted) -> list[Output]:
        """Make a process a member, and welcome it."""
        sender, message, now = event.node, event.message, self._clock.now
        known = self._members.members.get(sender)
        if known is None or not known.start:  # new, or known only from the log
            late = self._is_late(message.name)
            if message.role == "worker":
                self._names.add(message.name)
            self._members.add(
                Member(
                    sender,
                    message.role,
                    message.name,
                    message.start,
                    message.host,
                    message.address,
                    now,
                    now,
                    late=late,
                    fingerprint=message.fingerprint,
                )
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
        return [fact, Send(sender, Ok(message.req)), ServersWanted(), SamplersWanted(message.samplers)]

    def drain(self, sender: NodeId, message: Drain) -> list[Output]:
        """Let a host become empty, or with `undo` be used again; a user or the launcher asks for it (rule 15)."""
        problem = self._drain_problem(message)
        if problem is not None:
            return [Send(sender, Refused(message.req, *problem))]
        self._members.drain(message.host, undo=message.undo)
        fact = DrainFact(message.host, message.undo)
        return [fact, Send(sender, Ok(message.req)), ServersWanted(), WorkFreed()]

    def _drain_problem(self, message: Drain) -> tuple[str, str] | None:
        known = sorted({*self._members.hosts, *self._members.draining_hosts})
        if message.host not in known:
            return (
                "host",
                f"no process of this job runs on host {message.host!r}; it runs on {', '.join(known) or 'none'}",
            )
        if message.undo:
            return None
        if message.others or set(self._members.hosts) - self._members.draining_hosts - {message.host}:
            return None  # the launcher starts servers on other hosts; blocks wait until there are enough of them
        problem = f"{message.host} is the only host with roles of the job that is not being emptied"
        return "host", f"{problem}: add a host first, or give one roles (`paceline scale`)"

    def forget_drains(self) -> None:
        """Let every host be used again: the run is resumed, perhaps on other hosts."""
        self._members.forget_drains()

    # ------------------------------------------------------------ leaving

    def bye(self, sender: NodeId, message: Bye) -> list[Output]:
        """A worker leaves: its script has ended without an error. The other workers continue."""
        self._members.leave(sender)
        return [Send(sender, Ok(message.req)), WorkersGone((sender,), lost=False)]

    def exited(self, sender: NodeId, message: Exited) -> list[Output]:
        """Evict a process whose end the launcher reports."""
        ok = Send(sender, Ok(message.req))
        for member in self._members.named(message.name):
            if member.is_start(message.name, message.start):
                how = f"signal {-message.code}" if message.code < 0 else f"exit code {message.code}"
                return [ok, Evicted((member,), how)]
        return [ok]

    def host_lost(self, sender: NodeId, message: HostLost) -> list[Output]:
        """Evict every process of a host in one event: the launcher reports that the host is gone (rule 14)."""
        mates = {member.node: member for member in self._members.of_host(message.host)}
        for name, start in message.roles:
            mates |= {member.node: member for member in self._members.named(name) if member.is_start(name, start)}
        ok = Send(sender, Ok(message.req))
        return [ok, Evicted(tuple(mates.values()), message.reason, message.host)] if mates else [ok]

    def session_lost(self, node: NodeId, reason: str) -> list[Output]:
        """Evict `node`: the transport lost the session with it."""
        member = self._members.members.get(node)
        return [] if member is None else [Evicted((member,), reason)]

    def tick(self) -> list[Output]:
        """Evict the members that have been silent for longer than the heartbeat time-out, a silent host as one.

        If all processes of several hosts are silent, the coordinator itself is cut off, and the job waits (rule 15).
        """
        now, limit_s = self._clock.now, silence_s(self._identity.spec)
        if is_cut_off(self._members, now, limit_s):
            return []
        out: list[Output] = []
        gone: set[NodeId] = set()
        for member in self._members.expire(now):
            if member.node in gone:
                continue
            together = lost_with(self._members, member, limit_s)
            gone.update(m.node for m in together)
            why = f"silent for {now - member.seen:.1f} s; PACELINE_HEARTBEAT_TIMEOUT_S raises the limit"
            out.append(Evicted(together, why, member.host if len(together) > 1 else ""))
        return out

    def evict(self, event: Evicted) -> list[Output]:
        """Remove lost members; the other machines give their work and their blocks to other members."""
        known = {m.node: m for member in event.members for m in (member, *mates(self._members, member))}
        lost = tuple(known.values())
        for member in lost:
            self._members.remove(member.node)
        out: list[Output] = []
        workers = tuple(m for m in lost if m.role == "worker")
        if workers:
            out.append(MembersRemoved(workers, event.why, event.host))
        for left in (False, True):
            gone = tuple(m.node for m in workers if m.left == left)
            if gone:
                self.lost_workers += 0 if left else len(gone)
                out.append(WorkersGone(gone, lost=not left, host=event.host))
        # The change of placement comes last: the work that it frees must not be offered to a lost worker.
        servers = tuple(m for m in lost if m.role == "server")
        return [*out, MembersRemoved(servers, event.why, event.host, event.left)] if servers else out

    def send_back(self, event: WorkerRewound) -> list[Output]:
        """Tell a worker to start again: its script is further than the job. It does not count as lost."""
        reason = f"the job went back to version {self._log.version}"
        abort = Abort(self._identity.generation, "rewound", reason)
        return [Send(event.worker, abort), *self._release(event.worker, reason)]

    def _release(self, worker: NodeId, why: str) -> list[Output]:
        member = self._members.remove(worker)
        return [] if member is None else [MembersRemoved((member,), why), WorkersGone((worker,), lost=False)]

    # ------------------------------------------------------------ workers that disagree, roles that fail

    def refuse(self, sender: NodeId, problem: str) -> list[Output]:
        """Handle a worker that disagrees with the others: refuse it if it joined late, otherwise fail the job."""
        member = self._members.members.get(sender)
        if member is None or not member.late:
            return [JobFailed("script", problem)]
        return self._turn_away(sender, problem)

    def _turn_away(self, sender: NodeId, problem: str) -> list[Output]:
        self._refused.add(sender)
        return [Send(sender, Abort(self._identity.generation, "script", problem)), *self._release(sender, problem)]

    def failed(self, sender: NodeId, message: Failed) -> list[Output]:
        """Fail the job because a process has failed, unless that process was refused before."""
        ok = Send(sender, Ok(message.req))
        if sender in self._refused:
            return [ok]
        return [ok, JobFailed(message.kind, f"{self._members.name(sender)} failed", message.trace)]
