"""Those that may hold the blocks: servers, or the members in workers' processes, which sum as a group."""

from __future__ import annotations

from paceline.core.coordinator.tables.members import Member, Members
from paceline.types import is_member


def holders(members: Members, *, grouped: bool) -> list[Member]:
    """The members of workers if `grouped`, else the servers, in order of name."""
    return [m for m in members.by_role("server") if is_member(m.node) == grouped]


def wanted_holders(members: Members, *, grouped: bool) -> int:
    """How many of them the job wants: a member in each worker, or its servers."""
    return members.wanted_workers if grouped else members.wanted_servers
