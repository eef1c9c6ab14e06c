"""The window: which steps a state of the model contains, and how old the state of a gradient may be.

The watermark of a state is the lowest step that the state lacks: it contains all steps below.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.types import INIT_STEP, UNLIMITED


class Watermark:
    """The set of committed steps: all below `low`, and a few above it."""

    def __init__(self, low: int = 0, above: Iterable[int] = ()) -> None:
        self.low = low
        self._above: set[int] = set(above)

    def add(self, step: int) -> None:
        """Add `step`, which is committed."""
        if step == INIT_STEP:
            return
        low, above = self.low, self._above
        assert not self.has(step), f"step {step} committed twice"
        if step > low:
            above.add(step)
            return
        low += 1
        while low in above:
            above.discard(low)
            low += 1
        self.low = low

    @property
    def above(self) -> tuple[int, ...]:
        """Committed steps above `low`, in order."""
        return tuple(sorted(self._above))

    def has(self, step: int) -> bool:
        """Whether `step` is committed."""
        return step < self.low or step in self._above


def staleness(step: int, watermark: int) -> int:
    """The largest number of steps below `step` that a state with this watermark can lack."""
    return max(0, step - watermark)


def admits(window: int, step: int, watermark: int) -> bool:
    """Whether a gradient for `step` may be computed on a state with this watermark."""
    return window == UNLIMITED or staleness(step, watermark) <= window


def window_refusal(window: int, step: int, version: int, watermark: int | None) -> tuple[str, str] | None:
    """Refuse a gradient for `step` if `version`, on which it was computed, may lack a step below `step - window`.

    `watermark` is that of `version`, or None if the server no longer knows it, since `version` is too old for any step.
    Returns the broken rule and a text, or None if the gradient may count.
    """
    if watermark is None or not admits(window, step, watermark):
        return "stale", f"step {step} may not be computed on version {version}"
    return None


def needed_watermark(window: int, step: int) -> int:
    """The lowest watermark of a state on which `step` may be computed."""
    return 0 if window == UNLIMITED else max(0, step - window)


def may_lease(window: int, step: int, watermark: int) -> bool:
    """Whether slots of `step` may be leased when the newest state has this watermark.

    A lease may come one step earlier than `admits` allows: the worker waits until the state that it needs is there.
    """
    return window == UNLIMITED or step <= watermark + window + 1
