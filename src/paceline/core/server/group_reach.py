"""Which other members of a group do not answer, while this member waits for them. Rules 5 and 18.

The library that reduces does not say whom it waits for. So a member that waits asks the others by its own sessions, and
reports those that are silent: two members may not reach each other though both reach the coordinator.
"""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.running_time import RunningTime
from paceline.core.server.assignment import Assignment
from paceline.core.server.replication import Replication
from paceline.messages import Echo, Reachable, Unreachable
from paceline.types import COORDINATOR, NodeId


class GroupReach:
    """The members that were asked and have not answered. Times count only while this process runs."""

    def __init__(self, assignment: Assignment, replication: Replication, running: RunningTime) -> None:
        self._assignment = assignment
        self._replication = replication
        self._running = running
        self._at = (0, 0)
        self._asked: dict[NodeId, float] = {}
        self._silent: set[NodeId] = set()
        self._doubts = False

    def doubt(self, now: float) -> list[Send]:
        """Ask all other members for an answer, and report those that have given none for `reach_s`.

        The shell calls this about once a second while its group forms or reduces for longer than usual.
        """
        ran = self._running.advance(now)
        assignment = self._assignment
        if self._at != assignment.at:
            self.trust()
            self._at = assignment.at
        self._doubts = True
        out: list[Send] = []
        for peer in assignment.group:
            if peer == assignment.node:
                continue
            silent_s = ran - self._asked.setdefault(peer, ran)
            out.append(Send(peer, Echo()))
            if silent_s >= self._replication.reach_s:
                self._silent.add(peer)
                out.append(Send(COORDINATOR, Unreachable(peer, silent_s, assignment.epoch)))
        return out

    def trust(self) -> None:
        """Stop to ask: this member does not wait any more."""
        self._asked.clear()
        self._silent.clear()
        self._doubts = False

    def answered(self, peer: NodeId) -> list[Send]:
        """Note an answer; report it if the coordinator believes that this member cannot reach `peer`."""
        self._asked.pop(peer, None)
        if peer not in self._silent:
            return []
        self._silent.discard(peer)
        return [Send(COORDINATOR, Reachable(peer))]

    def greet(self, peer: NodeId) -> list[Send]:
        """Ask `peer` again: the session with it is up."""
        return [Send(peer, Echo())] if peer in self._asked else []

    @property
    def peers(self) -> dict[NodeId, str]:
        """The addresses of the members that are asked."""
        if not self._doubts or self._at != self._assignment.at:
            return {}
        addresses, group = self._assignment.addresses, self._assignment.group
        return {peer: addresses.get(peer, "") for peer in group if peer != self._assignment.node}
