"""Heartbeats: the coordinator repeats messages that a server has missed, and evicts a server that stays behind."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.events import BlocksPlaced, Evicted, MembersRemoved, Output
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import History, Send
from paceline.messages import Beat, BeatAck, Position, Unpin
from paceline.types import NodeId, Placement

_MAX_REPEATED_COMMITS = 1024
_PATIENCE = 3  # a server whose blocks have no other copy gets this many times the heartbeat time-out to catch up


class Heartbeats:
    """Compares the version that a server reports with the version that it should have."""

    def __init__(self, tables: Tables, segments: Segments, commits: Commits, placement: BlockPlacement) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._pins = tables.pins
        self._placed = tables.placed
        self._segments = segments
        self._commits = commits
        self._placement = placement
        self._applied: dict[NodeId, int] = {}
        self._behind: dict[NodeId, tuple[tuple[int, int, int], float]] = {}

    def restore(self, history: History) -> list[Output]:
        """Do nothing: servers report their version with their next heartbeat."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: `blocks_placed` follows."""
        return []

    def blocks_placed(self, event: BlocksPlaced) -> list[Output]:
        """Forget which version each server has applied: the servers load their blocks anew."""
        self._applied.clear()
        return []

    def members_removed(self, event: MembersRemoved) -> list[Output]:
        """Forget how far servers were behind that are no members any more."""
        for member in event.members:
            self._behind.pop(member.node, None)
        return []

    def beat(self, sender: NodeId, beat: Beat) -> list[Output]:
        """Acknowledge a heartbeat, and repeat to a server what it has missed."""
        known = self._members.seen(beat.node, self._clock.now) and beat.node not in self._incarnation.awaited
        out: list[Output] = [Send(sender, BeatAck(self._identity.generation, self._segments.state, known))]
        if self._identity.failure is not None:
            return [*out, Send(beat.node, self._identity.failure)]
        member, placement = self._members.members.get(beat.node), self._placed.placement
        # Until every holder of blocks has registered, the coordinator does not know which versions they must keep.
        if member is None or sender != member.node or self._incarnation.awaited or placement is None:
            return out
        return out + self._repair(member.node, beat, placement) if member.role == "server" else out

    def _repair(self, server: NodeId, beat: Beat, placement: Placement) -> list[Output]:
        """Repeat what a server has missed.

        Commits are repeated when two heartbeats in a row report the same version: after one they may be on their way.
        """
        out: list[Output] = []
        is_holder = server in self._placed.holders
        if (beat.incarnation, beat.epoch) != (self._incarnation.number, placement.epoch):
            self._applied.pop(server, None)
            out += [Send(server, self._placement.assignment()), Send(server, self._segments.plan())]
            if beat.incarnation == self._incarnation.number and is_holder and beat.applied >= -1:
                out += self._missed(server, beat.applied)  # the server enters the new epoch once it has these commits
            return out + self._evict_late(server, beat, placement)
        if beat.revision < self._phases.schedule.revision:
            out.append(Send(server, self._segments.plan()))
        if not is_holder:
            return out
        before = self._applied.get(server)
        self._applied[server] = beat.applied
        if before == beat.applied < self._log.version:
            out += self._missed(server, beat.applied)
        for version in beat.kept:
            if version not in self._pins and version != self._log.version:
                out.append(Send(server, Unpin(self._identity.generation, self._incarnation.number, version)))
        self._commits.trim(min(self._applied.get(s, -2) for s in self._placed.holders))
        return out + self._evict_late(server, beat, placement)

    def _missed(self, server: NodeId, applied: int) -> list[Output]:
        return [Send(server, message) for message in self._commits.missed(applied, _MAX_REPEATED_COMMITS)]

    def _evict_late(self, server: NodeId, beat: Beat, placement: Placement) -> list[Output]:
        """Evict a server that sends heartbeats but stays at an old version; sooner if its blocks have other copies."""
        at, now = (beat.incarnation, beat.epoch, beat.applied), self._clock.now
        if server not in self._placed.holders:
            return []
        if at >= (self._incarnation.number, placement.epoch, self._log.version):
            self._behind.pop(server, None)
            return []
        known, since = self._behind.setdefault(server, (at, now))
        if known != at:
            self._behind[server] = at, now
            return []
        patience = 1 if self._placement.can_spare(server) else _PATIENCE
        if now - since <= self._identity.spec.heartbeat_timeout_s * patience:
            return []
        return [Evicted((self._members.members[server],), "it does not receive what it is sent")]
