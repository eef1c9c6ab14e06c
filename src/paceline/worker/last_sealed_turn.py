"""The turn that was sealed last. If this worker gets the same slot again, it need not compute the slot again."""

from __future__ import annotations

from typing import NamedTuple

from paceline.messages import Grant
from paceline.types import Hyper


class SealedTurn(NamedTuple):
    """A sealed turn: its lease, the version it was computed on (-1: blocks of several versions), and its report.

    `ahead` is the epoch in which that version was read before its commit; 0 if its commit was known at the seal.
    """

    grant: Grant
    version: int
    ahead: int
    weight: float
    hyper: Hyper
    logs: dict[str, float]
    seconds: float
    warnings: dict[str, str]
    waited: float = 0.0

    @property
    def report(self) -> tuple[float, Hyper, dict[str, float], float, dict[str, str], float]:
        """Weight, hyper-parameters, logged values, duration, warnings, and the wait for the batch."""
        return self.weight, self.hyper, self.logs, self.seconds, self.warnings, self.waited

    def counts_on(self, version: int, epoch: int, proven: tuple[int, int] = (0, -1)) -> bool:
        """Whether the turn may be sealed again in placement `epoch`: it was computed on `version`, which is not void.

        `proven` is the last (epoch, version) that was read before its commit and is committed.
        """
        return self.version == version and (self.ahead in (0, epoch) or (self.ahead, version) == proven)

    def is_of(self, grant: Grant) -> bool:
        """Whether `grant` is a lease of the same slot. Computed on the same version, it would give the same bits."""
        mine = self.grant
        return self.version >= 0 and (mine.segment, mine.incarnation, mine.step, mine.slot) == (
            grant.segment,
            grant.incarnation,
            grant.step,
            grant.slot,
        )
