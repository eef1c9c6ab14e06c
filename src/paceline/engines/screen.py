"""What an engine shows to the user of a run."""

from __future__ import annotations

from typing import Protocol

from paceline.messages.status import RunSummary, Status


class Screen(Protocol):
    """Where a run is shown."""

    def line(self, name: str, text: str) -> None:
        """A role printed a line."""
        ...

    def status(self, status: Status) -> None:
        """The newest state of the run."""
        ...

    def note(self, text: str, *, warning: bool = False) -> None:
        """Something the user should know."""
        ...

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """The last thing printed when a run fails."""
        ...

    def summary(self, summary: RunSummary) -> None:
        """The run is done."""
        ...
