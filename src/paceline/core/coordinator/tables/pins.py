"""Pins: the reasons for which servers must keep versions readable."""

from __future__ import annotations

import msgspec


class ForValidation(msgspec.Struct, frozen=True):
    """Rounds of validation read the version."""


class ForPhase(msgspec.Struct, frozen=True):
    """The version is the last of a phase that some worker has not left."""

    number: int


Reason = ForValidation | ForPhase
VALIDATION = ForValidation()


class PinBook:
    """The reasons for each pinned version. A version is released when its last reason is removed."""

    def __init__(self) -> None:
        self._reasons: dict[int, set[Reason]] = {}

    def add(self, version: int, reason: Reason) -> None:
        """Pin `version` for `reason`."""
        self._reasons.setdefault(version, set()).add(reason)

    def __contains__(self, version: object) -> bool:
        """Whether `version` is pinned."""
        return version in self._reasons

    def older(self, version: int) -> bool:
        """Whether a version before `version` is pinned."""
        return any(v < version for v in self._reasons)

    def discard(self, version: int, reason: Reason) -> bool:
        """Remove one reason for `version`; True if it was the last one."""
        reasons = self._reasons.get(version)
        if reasons is None or reason not in reasons:
            return False
        reasons.discard(reason)
        if reasons:
            return False
        del self._reasons[version]
        return True

    def clear(self) -> None:
        """Remove all pins."""
        self._reasons.clear()
