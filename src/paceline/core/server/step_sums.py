"""What a server holds of a step that is not committed yet: attempts on its slots, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.messages import Push, Ready, Receipt, Seal
from paceline.types import Fence


@dataclass(slots=True)
class Attempt:
    """One worker's work on one slot, as far as it has arrived here."""

    base: int
    payloads: dict[int, object] = field(default_factory=dict)
    revs: dict[int, int] = field(default_factory=dict)
    seal: Seal | None = None

    @property
    def whole(self) -> bool:
        """Sealed, and the sealed push of every block is here."""
        return self.seal is not None and all(self.revs.get(b) == rev for b, rev in self.seal.revs)

    def take(self, push: Push, payload: Sequence[object]) -> dict[int, tuple[int, object]]:
        """Add a push; returns the blocks that are new or newer than what was here, as (rev, payload)."""
        fresh: dict[int, tuple[int, object]] = {}
        for frame, content in zip(push.blocks, payload, strict=True):
            if frame.rev > self.revs.get(frame.block, -1):
                self.revs[frame.block] = frame.rev
                self.payloads[frame.block] = content
                fresh[frame.block] = frame.rev, content
        if push.seal is not None:
            self.seal = push.seal
        return fresh


@dataclass(slots=True)
class StepSum:
    """What has arrived for one step that is not committed yet."""

    num_slots: int
    attempts: dict[int, dict[Fence, Attempt]] = field(default_factory=dict)
    chosen: dict[int, Fence] = field(default_factory=dict)
    receipts: dict[tuple[int, Fence], Receipt] = field(default_factory=dict)
    ready: dict[tuple[Fence, ...], Ready] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    summed: int = 0
    told: int = 0
