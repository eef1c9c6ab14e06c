"""How long to look for news before going to sleep: waking a process costs more than most answers take to come.

Looking costs a core, so it is done briefly, only where it has paid lately, and not against others that could use the
core: a turn that was given away and came back late means that somebody else computes here. What is lost then (a
millisecond or more) is some thirty times what looking gains, so one such turn outweighs many looks that paid.
"""

from __future__ import annotations

LONGEST_S = 300e-6
"""Longer waits are slept through. A peer that sleeps answers within 200 us, so two sleepers can become lookers."""
_CROWDED_S = 200e-6
"""Less is a hiccup of the machine; who computes keeps its turn for about a millisecond."""
_MOST_SKIPPED = 255
_FIRST_SKIPPED = 15
_PAID_IN_A_ROW = 16


class Spin:
    """Decides, wait by wait, from how the last ones ended."""

    __slots__ = ("_crowded_skip", "_paid", "_skipped", "_vain_skip")

    def __init__(self) -> None:
        self._vain_skip = 0
        self._crowded_skip = 0
        self._skipped = 0
        self._paid = 0

    def budget_s(self) -> float:
        """How long the wait that begins now may look; 0 for not at all."""
        if self._skipped < self._vain_skip or self._skipped < self._crowded_skip:
            self._skipped += 1
            return 0.0
        self._skipped = 0
        return LONGEST_S

    def paid(self) -> None:
        """Something came while looking."""
        self._vain_skip = 0
        self._paid += 1
        if self._paid >= _PAID_IN_A_ROW:
            self._paid = 0
            self._crowded_skip //= 2

    def in_vain(self) -> None:
        """Nothing came: looking is tried again less and less often."""
        self._vain_skip = min(2 * self._vain_skip + 1, _MOST_SKIPPED)

    def crowded(self, turn_s: float) -> bool:
        """Whether a turn that took this long to come back tells that the core is wanted; if so, looking stops."""
        if turn_s < _CROWDED_S:
            return False
        self._paid = 0
        self._crowded_skip = min(max(2 * self._crowded_skip, _FIRST_SKIPPED), _MOST_SKIPPED)
        return True
