"""Makes durable who joined the job and who left it, for the records of the run. No decision depends on it."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import MembersRemoved, Output, ServerJoined, WorkerJoined
from paceline.core.effects import History, MemberFact
from paceline.messages import Position
from paceline.types import NodeId

JOINED, LEFT, LOST = "joined", "left", "lost"


class MemberRecords:
    """Writes one fact when a process becomes a member, and one when it is none any more."""

    def __init__(self, tables: Tables) -> None:
        self._members = tables.members
        self._known: set[NodeId] = set()

    def restore(self, history: History) -> list[Output]:
        """Take over who is a member by the log: a process that registers again has not joined anew."""
        for row in history.facts:
            if isinstance(row.fact, MemberFact):
                (self._known.add if row.fact.change == JOINED else self._known.discard)(row.fact.node)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: a rewind changes no member."""
        return []

    def joined(self, event: WorkerJoined | ServerJoined) -> list[Output]:
        """Note that a process has become a member, unless it is known."""
        if event.node in self._known:
            return []
        self._known.add(event.node)
        member = self._members.members[event.node]
        return [MemberFact(event.node, member.name, member.role, member.host, JOINED)]

    def removed(self, event: MembersRemoved) -> list[Output]:
        """Note that processes are no members any more."""
        out: list[Output] = []
        for member in event.members:
            if member.node in self._known:
                self._known.discard(member.node)
                change = LEFT if event.left or member.left else LOST
                out.append(MemberFact(member.node, member.name, member.role, member.host, change, event.why))
        return out
