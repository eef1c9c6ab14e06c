"""The interface through which a launcher shows a run to its user."""

from __future__ import annotations

from typing import Protocol

from paceline.messages.status import RunSummary, Status


class ScreenClosed(BrokenPipeError):
    """The reader of the output has closed it. A screen raises this once, and then shows nothing more there."""


class Screen(Protocol):
    """Shows one run to its user. Every method may raise `ScreenClosed`."""

    def line(self, name: str, text: str, *, error: bool) -> None:
        """Show a line that the process called `name` printed; `error` says that it is not a result of the script."""
        ...

    def status(self, status: Status) -> None:
        """Show the newest status of the run."""
        ...

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a message to the user."""
        ...

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """Show why the run failed. Nothing is shown after this."""
        ...

    def summary(self, summary: RunSummary) -> None:
        """Show the summary of a run that is done."""
        ...
