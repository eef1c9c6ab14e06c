"""One attempt of a slot on its way to a server: what has arrived, and whether that is all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.server.block_store import SealedAttempt
from paceline.messages import Push, Seal, Sealed
from paceline.types import Fence


@dataclass(slots=True)
class Attempt:
    """The pushes of one worker for one slot that have arrived so far. `base` is the version it computed on.

    `report` comes with the seal.
    """

    base: int
    payloads: dict[int, object] = field(default_factory=dict)
    revs: dict[int, int] = field(default_factory=dict)
    seal: Seal | None = None
    report: Sealed | None = None

    @property
    def arrived(self) -> bool:
        """Whether this attempt is sealed and the sealed push of every block has arrived."""
        return self.seal is not None and self.revs.items() >= set(self.seal.revs)

    def take(self, push: Push, payload: Sequence[object]) -> dict[int, tuple[int, object]]:
        """Add a push; returns, as (rev, payload), its blocks that had not arrived, or only with a lower rev."""
        fresh: dict[int, tuple[int, object]] = {}
        for frame, content in zip(push.blocks, payload, strict=True):
            if frame.rev > self.revs.get(frame.block, -1):
                self.revs[frame.block] = frame.rev
                self.payloads[frame.block] = content
                fresh[frame.block] = frame.rev, content
        if push.seal is not None:
            self.seal, self.report = push.seal, push.report
        return fresh

    def take_out(self, slot: int, fence: Fence) -> SealedAttempt:
        """Return the sealed attempt, and forget its payloads here."""
        sealed = self.as_sealed(slot, fence)
        self.payloads = {}
        return sealed

    def as_sealed(self, slot: int, fence: Fence) -> SealedAttempt:
        """The sealed attempt."""
        seal, payloads = self.seal, self.payloads
        assert seal is not None
        sealed = {b: payloads[b] for b, _ in seal.revs}
        return SealedAttempt(seal.weight, frozenset(seal.absent), sealed, slot, fence, dict(seal.revs))
