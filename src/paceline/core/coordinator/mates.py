"""The two names of a process: a worker that holds blocks, and the member that holds them."""

from __future__ import annotations

from paceline.core.coordinator.tables.members import Member, Members
from paceline.types import NodeId, mate_name, start_of


def mates(members: Members, member: Member) -> list[Member]:
    """The other member of the same process; none if the process has one name."""
    start = member.start or start_of(member.node)
    return [other for other in members.named(mate_name(member.name)) if other.is_start(other.name, start)]


def mate(members: Members, node: NodeId) -> NodeId:
    """The node of the other member of the same process; "" if there is none."""
    member = members.members.get(node)
    found = [] if member is None else mates(members, member)
    return found[0].node if found else ""
