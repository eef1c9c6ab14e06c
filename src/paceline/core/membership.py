"""Who is alive."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from paceline.types import NodeId


@dataclass(slots=True)
class Member:
    """One registered process."""

    node: NodeId
    role: str
    name: str
    pid: int
    host: str
    address: str | None
    seen: float
    joined: float
    phase: int = -1
    left: bool = False


class Membership:
    """Members and their silence. Times are the coordinator's running time: pauses of its own do not count."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.members: dict[NodeId, Member] = {}
        self._deadlines: list[tuple[float, NodeId]] = []
        self._lead: NodeId | None = None

    def add(self, member: Member) -> None:
        """A process registered (again)."""
        self.members[member.node] = member
        heappush(self._deadlines, (member.seen + self.timeout_s, member.node))

    def seen(self, node: NodeId, now: float) -> bool:
        """`node` gave a sign of life; False if it is not a member (any more)."""
        member = self.members.get(node)
        if member is None:
            return False
        member.seen = now
        return True

    def remove(self, node: NodeId) -> Member | None:
        """`node` left or is lost."""
        return self.members.pop(node, None)

    def silent(self, now: float) -> list[Member]:
        """Members silent for longer than the time-out. Cost: the few whose deadline has come."""
        lost = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, node = heappop(self._deadlines)
            member = self.members.get(node)
            if member is None:
                continue
            if now - member.seen > self.timeout_s:
                lost.append(member)
            else:
                heappush(self._deadlines, (max(member.seen + self.timeout_s, now + 1e-3), node))
        return lost

    def by_role(self, role: str) -> list[Member]:
        """Members of a role, in order of name."""
        return sorted((m for m in self.members.values() if m.role == role), key=lambda m: m.name)

    def lead(self) -> NodeId | None:
        """One live worker: the longest-serving when the last one was lost. Elected again only then."""
        current = self.members.get(self._lead) if self._lead is not None else None
        if current is None or current.left:
            workers = [m for m in self.members.values() if m.role == "worker" and not m.left]
            self._lead = min(workers, key=lambda m: (m.joined, m.name)).node if workers else None
        return self._lead


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
