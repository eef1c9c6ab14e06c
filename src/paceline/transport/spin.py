"""How long to look for news before going to sleep: waking a process costs more than most answers take to come.

Looking costs a core, so it is done briefly, only where it has paid lately, and never against others that could use
the core: a turn that was given away and came back late means that somebody else is computing here.
"""

from __future__ import annotations

LONGEST_S = 200e-6
"""Longer waits are slept through: a sleep costs some 50 us to end."""
_SHORTEST_S = 25e-6
_CROWDED_S = 30e-6
"""A turn given away comes back within a microsecond or two on a core that nobody else wants."""
_MOST_SKIPPED = 256


class Spin:
    """Decides, wait by wait, from how the last ones ended."""

    __slots__ = ("_budget_s", "_skip", "_skipped")

    def __init__(self) -> None:
        self._budget_s = LONGEST_S
        self._skip = 0
        self._skipped = 0

    def budget_s(self) -> float:
        """How long the wait that begins now may look; 0 for not at all."""
        if self._skipped < self._skip:
            self._skipped += 1
            return 0.0
        self._skipped = 0
        return self._budget_s

    def paid(self) -> None:
        """Something came while looking: it is done more often again."""
        self._budget_s = LONGEST_S
        self._skip //= 2

    def in_vain(self) -> None:
        """Nothing came: the next waits look for less long, and then only now and then."""
        if self._budget_s > _SHORTEST_S:
            self._budget_s = max(self._budget_s / 2, _SHORTEST_S)
        else:
            self._back_off()

    def crowded(self, turn_s: float) -> bool:
        """Whether a turn that took this long to come back tells that the core is wanted; if so, looking stops."""
        if turn_s < _CROWDED_S:
            return False
        self._back_off()
        return True

    def _back_off(self) -> None:
        self._skip = min(2 * self._skip + 1, _MOST_SKIPPED)
