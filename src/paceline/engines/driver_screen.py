"""Shows a run in the output of the program that has launched it: a script or a notebook."""

from __future__ import annotations

from paceline.engines.text_screen import TextScreen, make_console
from paceline.errors import UsageError
from paceline.messages.status import RunSummary, Status

ALL, PROGRESS, NONE = "all", "progress", "none"
SHOWS = (ALL, PROGRESS, NONE)


class DriverScreen:
    """Prints plain lines: results to the standard output of this process, everything else to its standard error.

    With ``all`` it prints everything, with ``progress`` not what the processes print, with ``none`` nothing.

    Raises:
        UsageError: `show` is another word.
    """

    def __init__(self, show: str) -> None:
        if show not in SHOWS:
            raise UsageError(f"show must be one of {', '.join(SHOWS)}, not {show!r}")
        self._has_lines = show == ALL
        self._text = None if show == NONE else TextScreen(make_console(), make_console(stderr=True), None)

    def line(self, name: str, text: str, *, error: bool) -> None:
        """Show a line that the process called `name` printed."""
        if self._text is not None and self._has_lines:
            self._text.line(name, text, error=error)

    def status(self, status: Status) -> None:
        """Show the newest status."""
        if self._text is not None:
            self._text.status(status)

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a message to the user."""
        if self._text is not None:
            self._text.note(text, warning=warning)

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """Show why the run failed, without the traceback: that is in the error which the program gets."""
        if self._text is not None:
            self._text.failure(reason, "", advice)

    def summary(self, summary: RunSummary) -> None:
        """Show the summary of a run that is done."""
        if self._text is not None:
            self._text.summary(summary)
