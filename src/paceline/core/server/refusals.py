"""Requests that this server refuses, by the rule that they break."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.messages import Refused
from paceline.types import NodeId


class Refusals:
    """Answers and counts refused messages: `counts` has their number by rule."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def refuse(self, sender: NodeId, req: int, rule: str, detail: str) -> list[Send]:
        """Count one refused message, and answer request `req` with the rule and the detail."""
        self.count(rule)
        return [Send(sender, Refused(req, rule, detail))]

    def count(self, rule: str) -> None:
        """Count one refused message that gets no answer."""
        self.counts[rule] = self.counts.get(rule, 0) + 1
