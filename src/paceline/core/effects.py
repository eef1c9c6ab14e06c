"""What a core asks its shell to do, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.messages import Message
from paceline.types import Commit, NodeId, Placement, Segment


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message`, followed by its frames (opaque here), to `to`."""

    to: NodeId
    message: Message
    payload: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class LogRow:
    """The mean of what the slots of a step logged."""

    version: int
    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The result of one validation of one version."""

    incarnation: int
    version: int
    step: int
    name: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """A placement epoch begins."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Write:
    """Make `row` durable before anything that follows in the list."""

    row: Commit | Segment | LogRow | EvaluationRow | PlacementRow


Effect = Send | Write
