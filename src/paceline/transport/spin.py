"""Decide how long to spin before sleeping: waking a process takes longer than most answers of a near peer.

A spin polls without sleeping and yields the core between polls. A spin occupies a core, so it is short, it is tried
often only where recent spins were successful, and it stops when another process needs the core. A yield that returns
late shows that another process does. Such a late yield costs a millisecond or more, about thirty times what a
successful spin saves, so one late yield outweighs many successful spins.
"""

from __future__ import annotations

LONGEST_S = 300e-6
"""The longest spin, in seconds. A peer that has to wake up first answers within 200 us, so a spin can await it."""
_CROWDED_S = 200e-6
"""A yield that takes this many seconds or more shows that another process needs the core: a process that computes keeps
the core for about a millisecond. Shorter yields are noise."""
_MOST_SKIPPED = 255  # at most this many waits in a row pass without a spin
_FIRST_SKIPPED = 15  # after the first late yield, this many waits pass without a spin
_PAID_IN_A_ROW = 16  # after this many successful spins without a late yield, fewer waits pass without a spin


class Spin:
    """Decides for each wait whether to spin, from the results of the last spins."""

    __slots__ = ("_crowded_skip", "_paid", "_skipped", "_vain_skip")

    def __init__(self) -> None:
        self._vain_skip = 0
        self._crowded_skip = 0
        self._skipped = 0
        self._paid = 0

    def budget_s(self) -> float:
        """How many seconds the wait that begins now may spin; 0 if it must not spin."""
        if self._skipped < self._vain_skip or self._skipped < self._crowded_skip:
            self._skipped += 1
            return 0.0
        self._skipped = 0
        return LONGEST_S

    def paid(self) -> None:
        """Note that a socket became readable during a spin: spin again at the next wait."""
        self._vain_skip = 0
        self._paid += 1
        if self._paid >= _PAID_IN_A_ROW:
            self._paid = 0
            self._crowded_skip //= 2

    def in_vain(self) -> None:
        """Note that no socket became readable during a spin: skip about twice as many waits before the next spin."""
        self._vain_skip = min(2 * self._vain_skip + 1, _MOST_SKIPPED)

    def crowded(self, yield_s: float) -> bool:
        """Whether a yield of `yield_s` seconds shows that another process needs the core. The spin must then stop."""
        if yield_s < _CROWDED_S:
            return False
        self._paid = 0
        self._crowded_skip = min(max(2 * self._crowded_skip, _FIRST_SKIPPED), _MOST_SKIPPED)
        return True
