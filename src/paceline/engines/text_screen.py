"""Shows a run: with a progress line that is updated in place on a terminal, as plain lines otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.coordinator.status import describe
from paceline.coordinator.summary_text import summary_lines
from paceline.engines.screen import ScreenClosed
from paceline.messages.status import RunSummary, Status

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")


class TextScreen:
    """Prints results to the console `out`, and everything else to `err`.

    With `live`, which is on `err`, the last line of the terminal shows the newest status.
    """

    def __init__(self, out: Console, err: Console, live: Live | None, every_s: float = 5.0) -> None:
        self._out = out
        self._err = err
        self._live = live
        self._every_s = every_s
        self._next = 0.0
        self._shown: str | None = None
        self._last: str | None = None
        self._closed = False

    def line(self, name: str, text: str, *, error: bool) -> None:
        """Show a line that the process called `name` printed."""
        if self._live is not None and (error or self._out.is_terminal):  # above the line with the status
            colour = _COLOURS[sum(name.encode()) % len(_COLOURS)]
            self._print(self._err, Text(f"[{name}] ", colour) + Text(text))
            return
        with self._open():  # print without rich, which takes a millisecond a line
            if error:
                self._out.file.flush()
            (self._err if error else self._out).file.write(f"[{name}] {text}\n")

    def status(self, status: Status) -> None:
        """Show the newest status."""
        self._last = describe(status)
        with self._open():
            self._out.file.flush()
        if self._live is not None:
            self._live.update(Text(self._last, "bold", no_wrap=True, overflow="ellipsis"))
            return
        now = time.monotonic()
        if now >= self._next and self._last != self._shown and status.end_step is not None:
            self._next = now + self._every_s
            self._show_last()

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a message to the user."""
        self._print(self._err, Text(f"warning: {text}" if warning else text, "yellow" if warning else "bold"))

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """Show why the run failed. Nothing is shown after this."""
        self._finish()
        if trace:
            self._print(self._err, Text(trace.rstrip()))
        self._print(self._err, Text(f"paceline: {reason} ({advice})", "bold red"))

    def summary(self, summary: RunSummary) -> None:
        """Show the summary of a run that is done."""
        self._finish()
        for line in summary_lines(summary):  # no rich table: it would cut off the digest on a narrow screen
            self._print(self._out, Text(line))
        with self._open():
            self._out.file.flush()

    def _finish(self) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()
            self._live = None
        if self._last is not None and self._last != self._shown:
            self._show_last()

    def _show_last(self) -> None:
        assert self._last is not None
        self._shown = self._last
        self._print(self._err, Text(self._last))

    def _print(self, console: Console, text: Text) -> None:
        with self._open():
            if console is self._err:
                self._out.file.flush()  # so that a reader of both sees lines in their order
            console.print(text, soft_wrap=True)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Raise `ScreenClosed` if a reader has closed the output, once; then print to nobody."""
        try:
            yield
        except BrokenPipeError:
            for console in (self._out, self._err):
                _discard(console.file)
            if not self._closed:
                self._closed = True
                raise ScreenClosed("the reader of the output has closed it") from None


class _Console(Console):
    """A console whose user decides what follows when the reader has closed the output."""

    def on_broken_pipe(self) -> None:
        """Raise the error, which rich would turn into the end of the process."""
        raise BrokenPipeError


def _discard(file: IO[str]) -> None:
    """Let everything that is still to be written to `file` go nowhere, if the reader has closed it."""
    with suppress(OSError, ValueError):
        try:
            file.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file.fileno())
            os.close(nowhere)


def make_console(file: IO[str] | None = None, *, terminal: bool | None = None, stderr: bool = False) -> Console:
    """A console that prints text unchanged: rich markup in names or in a script's output has no effect.

    Without a `file` it prints to what is the standard output, or error, of this process at that moment.
    """
    return _Console(
        file=file,
        force_terminal=terminal,
        force_jupyter=False,  # else a notebook gets HTML instead of lines
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
    )
