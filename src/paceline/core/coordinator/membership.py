"""Who is alive."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush

from paceline.types import NodeId


@dataclass(slots=True)
class Member:
    """One registered process: start number `start` of `name`, 0 if it is known only from the log."""

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


class Membership:
    """Members and their silence. Times are the coordinator's running time: pauses of its own do not count."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.members: dict[NodeId, Member] = {}
        self._deadlines: list[tuple[float, int, Member]] = []
        self._count = 0
        self._workers: OrderedDict[NodeId, None] = OrderedDict()

    def add(self, member: Member) -> None:
        """A process registered (again)."""
        self.members[member.node] = member
        if member.role == "worker":
            self._workers[member.node] = None
        self._await(member, member.seen + self.timeout_s)

    def _await(self, member: Member, deadline: float) -> None:
        self._count += 1
        heappush(self._deadlines, (deadline, self._count, member))

    def seen(self, node: NodeId, now: float) -> bool:
        """`node` gave a sign of life; False if it is not a member (any more)."""
        member = self.members.get(node)
        if member is None:
            return False
        member.seen = now
        return True

    def remove(self, node: NodeId) -> Member | None:
        """`node` is lost, or long gone."""
        self._workers.pop(node, None)
        return self.members.pop(node, None)

    def leave(self, node: NodeId) -> None:
        """A worker has ended well: a member until it falls silent, but not one to count on."""
        self.members[node].left = True
        self._workers.pop(node, None)

    def silent(self, now: float) -> list[Member]:
        """Members silent for longer than the time-out. Cost: the few whose deadline has come."""
        lost = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, member = heappop(self._deadlines)
            if self.members.get(member.node) is not member:
                continue  # gone, or back as another start
            if now - member.seen > self.timeout_s:
                lost.append(member)
            else:
                self._await(member, max(member.seen + self.timeout_s, now + 1e-3))
        return lost

    def by_role(self, role: str) -> list[Member]:
        """Members of a role, in order of name."""
        return sorted((m for m in self.members.values() if m.role == role), key=lambda m: m.name)

    @property
    def num_workers(self) -> int:
        """Live workers that have not left."""
        return len(self._workers)

    def lead(self) -> NodeId | None:
        """One live worker: the longest-serving. It changes only when that one leaves or is lost."""
        return next(iter(self._workers), None)


class RunningTime:
    """Turns a monotonic clock into time during which this process ran.

    A gap between two readings longer than `max_gap_s` means that the process itself was stopped or starved, and only
    `max_gap_s` of it counts.
    """

    def __init__(self, max_gap_s: float = 1.0) -> None:
        self.max_gap_s = max_gap_s
        self.value = 0.0
        self._last: float | None = None

    def advance(self, monotonic_s: float) -> float:
        """The running time at this reading."""
        if self._last is not None:
            self.value += min(max(0.0, monotonic_s - self._last), self.max_gap_s)
        self._last = monotonic_s
        return self.value
