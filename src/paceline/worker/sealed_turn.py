"""A turn whose gradients are still in the worker's memory: if its slot comes back, it need not be computed again."""

from __future__ import annotations

from typing import NamedTuple

from paceline.messages import Grant
from paceline.types import Hyper


class SealedTurn(NamedTuple):
    """The turn of `grant`, computed on `version` (-1 if it was not one), and what was reported of it."""

    grant: Grant
    version: int
    weight: float
    hyper: Hyper
    logs: dict[str, float]
    seconds: float

    @property
    def report(self) -> tuple[float, Hyper, dict[str, float], float]:
        """Weight, hyper-parameters, what was logged, and how long it took."""
        return self.weight, self.hyper, self.logs, self.seconds

    def is_of(self, grant: Grant) -> bool:
        """Whether `grant` is another lease of the same slot: on the same version, it would be computed to the bit."""
        mine = self.grant
        return self.version >= 0 and (mine.segment, mine.incarnation, mine.step, mine.slot) == (
            grant.segment,
            grant.incarnation,
            grant.step,
            grant.slot,
        )
