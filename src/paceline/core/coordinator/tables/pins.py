"""Reasons for which servers must keep versions readable."""

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
    """Reasons by version. A version is released when its last reason is gone."""

    def __init__(self) -> None:
        self._reasons: dict[int, set[Reason]] = {}

    def add(self, version: int, reason: Reason) -> None:
        """`version` is needed."""
        self._reasons.setdefault(version, set()).add(reason)

    def __contains__(self, version: object) -> bool:
        """Whether `version` is needed."""
        return version in self._reasons

    def older(self, version: int) -> bool:
        """Whether a version before `version` is needed."""
        return any(v < version for v in self._reasons)

    def discard(self, version: int, reason: Reason) -> bool:
        """One reason less; True if that was the last."""
        reasons = self._reasons.get(version)
        if reasons is None or reason not in reasons:
            return False
        reasons.discard(reason)
        if reasons:
            return False
        del self._reasons[version]
        return True

    def clear(self) -> None:
        """No version is needed."""
        self._reasons.clear()
