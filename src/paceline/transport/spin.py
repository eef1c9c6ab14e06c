"""How long to spin before sleeping: waking a process takes longer than most answers of a near peer.

A spin polls without sleeping and yields the core between polls. It costs a core, so it is short, it is tried only where
it has paid lately, and it stops when another process needs the core: a yield that returns late means that. Such a yield
costs a millisecond or more, about thirty times what a spin gains, so one of them outweighs many spins that paid.
"""

from __future__ import annotations

LONGEST_S = 300e-6
"""The longest spin. A sleeping peer answers within 200 us, so two processes that sleep can both begin to spin."""
_CROWDED_S = 200e-6
"""A shorter yield is noise; a process that computes keeps the core for about a millisecond."""
_MOST_SKIPPED = 255
_FIRST_SKIPPED = 15
_PAID_IN_A_ROW = 16


class Spin:
    """Decides for each wait, from the results of the last ones, whether to spin."""

    __slots__ = ("_crowded_skip", "_paid", "_skipped", "_vain_skip")

    def __init__(self) -> None:
        self._vain_skip = 0
        self._crowded_skip = 0
        self._skipped = 0
        self._paid = 0

    def budget_s(self) -> float:
        """How long the wait that begins now may spin; 0 for not at all."""
        if self._skipped < self._vain_skip or self._skipped < self._crowded_skip:
            self._skipped += 1
            return 0.0
        self._skipped = 0
        return LONGEST_S

    def paid(self) -> None:
        """Something came during a spin."""
        self._vain_skip = 0
        self._paid += 1
        if self._paid >= _PAID_IN_A_ROW:
            self._paid = 0
            self._crowded_skip //= 2

    def in_vain(self) -> None:
        """Nothing came: spins are tried less and less often."""
        self._vain_skip = min(2 * self._vain_skip + 1, _MOST_SKIPPED)

    def crowded(self, yield_s: float) -> bool:
        """Whether a yield of `yield_s` shows that another process needs the core; the spin must stop then."""
        if yield_s < _CROWDED_S:
            return False
        self._paid = 0
        self._crowded_skip = min(max(2 * self._crowded_skip, _FIRST_SKIPPED), _MOST_SKIPPED)
        return True
