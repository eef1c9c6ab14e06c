"""How many slots a sampler keeps ahead of the leases: as many as workers need, and no more."""

from __future__ import annotations

LEAST, MOST = 2, 64
_CALM = 32  # answers in a row that need not wait, after which one slot ahead fewer is tried


class Demand:
    """The number of slots ahead. It doubles when a worker has to wait, and falls slowly while none does."""

    def __init__(self, least: int = LEAST) -> None:
        """Keep `least` slots ahead at any time: as many as are prepared at once, and one more."""
        self.ahead = self._least = least
        self._calm = 0

    def asked(self, *, ready: bool, ahead_is_full: bool) -> None:
        """Note that a worker has asked for a slot, and whether it was `ready`.

        `ahead_is_full`: all slots ahead were ready, too, so that fewer might do.
        """
        if not ready:
            self._calm = 0
            self.ahead = min(2 * self.ahead, max(MOST, self._least))
            return
        self._calm = self._calm + 1 if ahead_is_full else 0
        if self._calm >= _CALM:
            self._calm = 0
            self.ahead = max(self._least, self.ahead - 1)
