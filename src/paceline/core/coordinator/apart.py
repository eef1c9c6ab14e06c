"""What the user is told of two members of a group that cannot sum together, though both reach the coordinator."""

from __future__ import annotations

from paceline.core.coordinator.events import WarningFound
from paceline.core.coordinator.tables.members import Member
from paceline.types import mate_name


def apart(stays: Member, leaves: Member, why: str) -> WarningFound:
    """The warning that the process of `leaves` takes no part; `why` names both."""
    places = f"hosts {stays.host} and {leaves.host}" if stays.host != leaves.host else f"processes of {stays.host}"
    text = (
        f"{why}, though both reach the coordinator: {mate_name(leaves.name)} takes no part, and the others go on. "
        f"Allow TCP at any port between {places}, or use servers (--mode bsp)"
    )
    return WarningFound(f"apart {leaves.name}", text)
