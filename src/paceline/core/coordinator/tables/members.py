"""The members of a job: the processes that are registered, when each was heard last, and how many are wanted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from paceline.core.coordinator.tables.incarnation import RESUMED, Incarnation
from paceline.core.effects import DrainFact, History, IncarnationFact, ScaleFact
from paceline.types import NodeId, is_member, start_of


@dataclass(slots=True)
class Member:
    """One registered process. Only `Members` changes it.

    `start` counts the starts of processes with this name; 0 means that the process is known only from the log. `left`:
    the script of this worker has ended. `late`: this worker joined after the job had begun. `fingerprint` says what its
    machine computes with.
    """

    node: NodeId
    role: str
    name: str
    start: int
    host: str
    address: str | None
    seen: float
    joined: float
    left: bool = False
    late: bool = False
    fingerprint: str = ""

    def is_start(self, name: str, start: int) -> bool:
        """Whether this is start number `start` of `name`. A server that is known only from the log tells it, too."""
        return self.name == name and (self.start or start_of(self.node)) == start


class _Groups:
    """Members by a key, so that no registration looks at all members. A key without members is forgotten."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, ...], dict[NodeId, Member]] = {}

    def add(self, member: Member, *key: str) -> None:
        """Add `member` to the group of `key`, unless a part of the key is empty."""
        if all(key):
            self.by_key.setdefault(key, {})[member.node] = member

    def remove(self, member: Member, *key: str) -> None:
        """Remove `member` from the group of `key`, if it is there."""
        group = self.by_key.get(key, {})
        if group.pop(member.node, None) is not None and not group:
            del self.by_key[key]


class Members:
    """The members, and when each was heard last. Times are running time, without pauses of the coordinator (rule 7)."""

    def __init__(self, timeout_s: float, workers: int = 1, servers: int = 1) -> None:
        """The job wants that many `workers` and `servers`."""
        self.timeout_s = timeout_s
        self.wanted_workers = workers
        self.wanted_servers = servers
        self.members: dict[NodeId, Member] = {}
        self._deadlines: list[tuple[float, int, Member]] = []
        self._count = count()  # members cannot be compared: no two deadlines are equal
        self._workers: OrderedDict[NodeId, None] = OrderedDict()
        self._roles: dict[str, dict[NodeId, Member]] = {}
        self._hosts = _Groups()
        self._machines = _Groups()
        self._names = _Groups()
        self.draining_hosts: set[str] = set()

    def restore(self, history: History) -> None:
        """Take over how many processes the job wants, and which hosts must be empty."""
        for row in history.facts:
            match row.fact:
                case ScaleFact(workers=workers, servers=servers):
                    self.want(workers, servers)
                case DrainFact(host=host, undo=undo):
                    self.drain(host, undo=undo)
                case IncarnationFact(why=why) if why == RESUMED:
                    self.forget_drains()

    def want(self, workers: int, servers: int) -> None:
        """Set how many members of each role the job wants; 0 keeps the number."""
        self.wanted_workers = workers or self.wanted_workers
        self.wanted_servers = servers or self.wanted_servers

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Note that `host` must be empty, or with `undo` that it may be used again (rule 15)."""
        if undo:
            self.draining_hosts.discard(host)
        else:
            self.draining_hosts.add(host)

    def forget_drains(self) -> None:
        """Let every host be used again: a resumed run may have other hosts."""
        self.draining_hosts.clear()

    def add(self, member: Member) -> None:
        """Add a process that registered, or replace its entry."""
        self._ungroup(self.members.get(member.node))
        self.members[member.node] = member
        self._roles.setdefault(member.role, {})[member.node] = member
        self._hosts.add(member, member.host)
        self._machines.add(member, member.role, member.fingerprint)
        self._names.add(member, member.name)
        if member.role == "worker":
            self._workers[member.node] = None
        heappush(self._deadlines, (member.seen + self.timeout_s, next(self._count), member))

    def seen(self, node: NodeId, now: float) -> bool:
        """Note a sign of life of `node`; False if it is not a member (any more)."""
        member = self.members.get(node)
        if member is None:
            return False
        member.seen = now
        return True

    def remove(self, node: NodeId) -> Member | None:
        """Remove `node`; returns its entry, None if it was not a member."""
        self._workers.pop(node, None)
        member = self.members.pop(node, None)
        self._ungroup(member)
        if member is not None:
            del self._roles[member.role][node]
        return member

    def _ungroup(self, member: Member | None) -> None:
        if member is not None:
            self._hosts.remove(member, member.host)
            self._machines.remove(member, member.role, member.fingerprint)
            self._names.remove(member, member.name)

    def remove_unheard(self) -> None:
        """Remove the servers that are known only from the log; they become members when they register."""
        for member in [m for m in self.by_role("server") if not m.start]:
            self.remove(member.node)

    def leave(self, node: NodeId) -> None:
        """Note that the script of a worker has ended: it computes nothing, but stays a member until it is silent."""
        member = self.members[node]
        member.left = True
        self._workers.pop(node, None)
        self._machines.remove(member, member.role, member.fingerprint)

    def expire(self, now: float) -> list[Member]:
        """The members that have been silent for longer than the time-out. Looks only at deadlines that have come."""
        lost = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, member = heappop(self._deadlines)
            if self.members.get(member.node) is not member:
                continue  # this entry was removed or replaced
            if now - member.seen > self.timeout_s:
                lost.append(member)
            else:
                deadline = max(member.seen + self.timeout_s, now + 1e-3)
                heappush(self._deadlines, (deadline, next(self._count), member))
        return lost

    def name(self, node: NodeId) -> str:
        """The name of a member; the node itself if it is not one."""
        member = self.members.get(node)
        return node if member is None else member.name

    def named(self, name: str) -> list[Member]:
        """The members with that name: after a restart of the process, perhaps an earlier start of it, too."""
        return list(self._names.by_key.get((name,), {}).values())

    def by_role(self, role: str) -> list[Member]:
        """Members of a role, in order of name."""
        return sorted(self._roles.get(role, {}).values(), key=lambda m: m.name)

    def active_workers(self) -> list[Member]:
        """Workers whose script has not ended, in order of name."""
        return [m for m in self.by_role("worker") if not m.left]

    @property
    def num_workers(self) -> int:
        """How many workers are active."""
        return len(self._workers)

    def are_awaited(self, incarnation: Incarnation, now: float) -> bool:
        """Whether a new coordinator still waits for reports of servers and workers (rule 7)."""
        if incarnation.awaited:
            return True
        return now < incarnation.quiet_until and self.num_workers < self.wanted_workers

    def lead(self) -> NodeId | None:
        """The active worker that joined first; None without workers."""
        return next(iter(self._workers), None)

    @property
    def hosts(self) -> list[str]:
        """The hosts on which members run, in order of name; a member that is known only from the log names none."""
        return sorted(host for (host,) in self._hosts.by_key)

    def of_host(self, host: str) -> list[Member]:
        """The members that run on `host`, in order of name."""
        return sorted(self._hosts.by_key.get((host,), {}).values(), key=lambda m: m.name)

    def of_kind(self, role: str, fingerprint: str) -> Iterable[Member]:
        """The members of a role with that fingerprint, without workers that have left."""
        return self._machines.by_key.get((role, fingerprint), {}).values()

    def kinds(self, role: str) -> list[str]:
        """The fingerprints of the members of a role, without workers that have left."""
        return [fingerprint for of, fingerprint in self._machines.by_key if of == role]

    def is_draining(self, node: NodeId) -> bool:
        """Whether `node` runs on a host that must be empty."""
        member = self.members.get(node)
        return member is not None and member.host in self.draining_hosts

    @property
    def draining(self) -> frozenset[NodeId]:
        """Servers that must leave: all of a draining host, and those beyond the wanted number, highest number first.

        Of members, only those of a draining host: the launcher chooses the workers that leave.
        """
        leaving = [m for m in self.by_role("server") if m.host in self.draining_hosts]
        servers = [m for m in self.by_role("server") if not is_member(m.node)]
        servers.sort(key=lambda m: _number(m.name))
        staying = [m for m in servers if m.host not in self.draining_hosts]
        return frozenset(m.node for m in (*leaving, *staying[self.wanted_servers :]))


def _number(name: str) -> tuple[int, str]:
    """The number at the end of a name, then the name: a key for sorting."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits or 0), name
