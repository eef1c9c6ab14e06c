"""Why versions are kept readable."""

from __future__ import annotations


class PinBook:
    """Reasons by version. A version is released when its last reason is gone."""

    def __init__(self) -> None:
        self._reasons: dict[int, set[str]] = {}

    def add(self, version: int, reason: str) -> None:
        """`version` is needed."""
        self._reasons.setdefault(version, set()).add(reason)

    def __contains__(self, version: object) -> bool:
        """Whether `version` is needed."""
        return version in self._reasons

    def older(self, version: int) -> bool:
        """Whether a version before `version` is needed."""
        return any(v < version for v in self._reasons)

    def discard(self, version: int, reason: str) -> bool:
        """One reason less; True if that was the last."""
        reasons = self._reasons.get(version)
        if reasons is None or reason not in reasons:
            return False
        reasons.discard(reason)
        if reasons:
            return False
        del self._reasons[version]
        return True
