"""Restart of a coordinator: every holder of blocks registers before the job continues. Rule 7.

Every machine restores its durable facts from `History`. Workers and servers report the rest again: leases, seals and
readiness.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.events import (
    AllHeard,
    Evicted,
    MembersRemoved,
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
    """Waits until all holders of blocks have registered, then sends each the commits that it has missed."""

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
        """Give holders of blocks and workers a full term to register."""
        now, spec = self._clock.now, self._identity.spec
        self._incarnation.begin_term(now, spec.grace_s, spec.heartbeat_timeout_s)
        placement = self._placed.placement
        if placement is None:  # the earlier coordinator ended after a rewind, before the next placement
            return self._kept({self._log.version})
        self._incarnation.wait_for(self._placed.holders)
        for node, address in placement.addresses.items():
            self._membership.expect(node, address)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Wait for no server: the servers load the checkpoint, and keep no other version."""
        self._heard = {}
        return self._kept({self._log.version})

    def _kept(self, versions: set[int]) -> list[Output]:
        return [VersionsKept(tuple(sorted(v for v in versions if v >= 0)))]

    # ------------------------------------------------------------ holders of blocks

    def server_joined(self, event: ServerJoined) -> list[Output]:
        """Send a holder of blocks that registers the placement, the plan and the commits that it has missed."""
        server, message = event.node, event.message
        if self._placed.placement is None or server not in self._placed.holders:
            return []
        if message.incarnation == self._incarnation.number and message.applied > self._log.version:
            why = f"it has version {message.applied}, the log ends at {self._log.version}"
            return [Evicted((self._members.members[server],), why)]
        out, applied = self._orient(server, message)
        if server not in self._incarnation.awaited:
            return out + self._catch_up(server, applied)
        self._incarnation.heard(server)
        # A server that does not know of a rewind reports versions of an earlier incarnation.
        kept = message.kept if message.incarnation == self._incarnation.number else ()
        self._heard[server] = applied, frozenset(kept)
        return out if self._incarnation.awaited else out + self._all_heard()

    def members_removed(self, event: MembersRemoved) -> list[Output]:
        """Stop waiting for lost servers that hold no blocks in the placement now."""
        out: list[Output] = []
        for member in event.members:
            if member.node not in self._placed.holders:
                out += self._drop(member.node)
        return out

    def placement_changed(self, event: PlacementDecided) -> list[Output]:
        """Stop waiting for servers that hold no block in the new placement."""
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
        """The messages that bring `server` into the placement, and the version that it has after them."""
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
        """Continue the job: every holder of blocks has registered and reported its versions."""
        heard, self._heard = self._heard, {}
        if not heard:
            return []
        kept = {version for _, versions in heard.values() for version in versions}
        kept |= set(range(min(applied for applied, _ in heard.values()), self._log.version + 1))
        # A version can still be pinned if each server has kept it, or has not applied a later version: the
        # announcement of the next commit tells that server to keep it.
        kept = {v for v in kept if all(v in versions or v >= applied for applied, versions in heard.values())}
        return [*self._kept(kept), AllHeard({server: applied for server, (applied, _) in heard.items()})]

    def all_heard(self, event: AllHeard) -> list[Output]:
        """Send each holder the commits and choices that it has missed, and commit the steps that are ready."""
        out: list[Output] = []
        for server, applied in event.applied.items():
            out += self._catch_up(server, applied)
        out += [Send(server, choice) for choice in self._commits.choices() for server in self._placed.voters]
        out += [StepNews(step) for step in self._gate.steps()]
        placement = self._placed.placement
        if placement is not None and placement.group:  # closings are not durable
            out += self._placement.regroup("the coordinator was started again")
        return [*out, WorkFreed()]

    def _catch_up(self, server: NodeId, applied: int) -> list[Output]:
        """The commits after version `applied`, which `server` has missed."""
        if server not in self._placed.holders:
            return []
        return [Send(server, announcement) for announcement in self._commits.missed(applied)]
