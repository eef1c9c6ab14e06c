"""A coordinator starts again: it hears every holder of blocks before the job goes on. Rule 7.

What is durable is in `History`; every machine restores itself from it. What is not (leases, seals, readiness) is
reported again by its holders.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.events import (
    AllHeard,
    Evicted,
    MemberRemoved,
    Output,
    PlacementDecided,
    ServerJoined,
    StepNews,
    VersionsKept,
    WorkFreed,
)
from paceline.core.coordinator.membership import Membership
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import History, Send
from paceline.messages import Position, Register
from paceline.types import NodeId


class Restart:
    """Waits for the holders of blocks, then sends each what it has missed."""

    def __init__(
        self,
        tables: Tables,
        segments: Segments,
        commits: Commits,
        placement: BlockPlacement,
        membership: Membership,
    ) -> None:
        self._clock = tables.clock
        self._gate = tables.gate
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._placed = tables.placed
        self._segments = segments
        self._commits = commits
        self._placement = placement
        self._membership = membership
        self._heard: dict[NodeId, tuple[int, frozenset[int]]] = {}

    def restore(self, history: History) -> list[Output]:
        """Holders of blocks, and workers, have a full term to register."""
        now, spec = self._clock.now, self._identity.spec
        self._incarnation.begin_term(now, spec.grace_s, spec.heartbeat_timeout_s)
        placement = self._placed.placement
        if placement is None:  # the coordinator died between a rewind and the placement that follows
            return self._kept({self._log.version})
        self._incarnation.wait_for(self._placed.holders)
        for node, address in placement.addresses.items():
            self._membership.expect(node, address)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Nothing is awaited: servers load the checkpoint. Its version is all that they have."""
        self._heard = {}
        return self._kept({self._log.version})

    def _kept(self, versions: set[int]) -> list[Output]:
        return [VersionsKept(tuple(sorted(v for v in versions if v >= 0)))]

    # ------------------------------------------------------------ holders of blocks

    def server_joined(self, event: ServerJoined) -> list[Output]:
        """A holder of blocks registers (again): tell it where the job is."""
        server, message = event.node, event.message
        if self._placed.placement is None or server not in self._placed.holders:
            return []
        if message.incarnation == self._incarnation.number and message.applied > self._log.version:
            why = f"it has version {message.applied}, the log ends at {self._log.version}"
            return [Evicted(self._members.members[server], why)]
        out, applied = self._orient(server, message)
        if server not in self._incarnation.awaited:
            return out + self._catch_up(server, applied)
        self._incarnation.heard(server)
        # A server that has not heard of a rewind reports versions of an incarnation that is over.
        kept = message.kept if message.incarnation == self._incarnation.number else ()
        self._heard[server] = applied, frozenset(kept)
        return out if self._incarnation.awaited else out + self._all_heard()

    def member_removed(self, event: MemberRemoved) -> list[Output]:
        """Other servers have the blocks of a lost one: it is not awaited any longer."""
        return [] if event.member.node in self._placed.holders else self._drop(event.member.node)

    def placement_changed(self, event: PlacementDecided) -> list[Output]:
        """Servers that hold no block any more are not awaited."""
        out: list[Output] = []
        for node in sorted(self._incarnation.awaited.difference(self._placed.holders)):
            out += self._drop(node)
        return out

    def _drop(self, server: NodeId) -> list[Output]:
        self._heard.pop(server, None)
        if server not in self._incarnation.awaited:
            return []
        self._incarnation.heard(server)
        return [] if self._incarnation.awaited or self._placed.placement is None else self._all_heard()

    def _orient(self, server: NodeId, message: Register) -> tuple[list[Output], int]:
        """Tell `server` where the job is; returns also which version it has then."""
        placement = self._placed.placement
        assert placement is not None
        plan = Send(server, self._segments.plan())
        if (message.incarnation, message.epoch) == (self._incarnation.number, placement.epoch):
            return [plan], message.applied
        assign = Send(server, self._placement.assignment())
        if message.incarnation == self._incarnation.number and message.epoch:
            return [assign, plan], message.applied if message.applied >= -1 else self._log.version
        position = self._incarnation.position
        return [assign, plan], -1 if position is None else position.version

    # ------------------------------------------------------------ all are heard

    def _all_heard(self) -> list[Output]:
        """Every holder of blocks has registered: what they have is known, and the job goes on."""
        heard, self._heard = self._heard, {}
        if not heard:
            return []
        kept = {version for _, versions in heard.values() for version in versions}
        kept |= set(range(min(applied for applied, _ in heard.values()), self._log.version + 1))
        # A server keeps what it has not applied yet when it does.
        kept = {v for v in kept if all(v in versions or v >= applied for applied, versions in heard.values())}
        return [*self._kept(kept), AllHeard({server: applied for server, (applied, _) in heard.items()})]

    def all_heard(self, event: AllHeard) -> list[Output]:
        """Send each holder what it has missed, and commit what can be."""
        out: list[Output] = []
        for server, applied in event.applied.items():
            out += self._catch_up(server, applied)
        out += [Send(server, choice) for choice in self._commits.choices() for server in self._placed.owners]
        out += [StepNews(step) for step in self._gate.steps()]
        return [*out, WorkFreed()]

    def _catch_up(self, server: NodeId, applied: int) -> list[Output]:
        """Commits that `server` has missed, now that it is known what must be kept."""
        if server not in self._placed.holders:
            return []
        return [Send(server, announcement) for announcement in self._commits.missed(applied)]
