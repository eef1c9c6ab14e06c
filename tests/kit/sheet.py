"""A screen for tests."""

from __future__ import annotations

from paceline.messages.status import RunSummary, Status


class Sheet:
    """A screen that keeps what is printed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []
        self.states = 0

    def line(self, name: str, text: str, *, error: bool) -> None:
        self.lines.append(f"{name}: {text}" + " (error)" * error)

    def status(self, status: Status) -> None:
        self.states += 1

    def note(self, text: str, *, warning: bool = False) -> None:
        self.notes.append(f"warning: {text}" if warning else text)

    def failure(self, reason: str, trace: str, advice: str) -> None:
        raise AssertionError

    def summary(self, summary: RunSummary) -> None:
        raise AssertionError
