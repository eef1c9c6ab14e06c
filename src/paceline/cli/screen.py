"""The screen of a command: with a progress line that is updated in place on a terminal, as plain lines otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from paceline.engines.text_screen import TextScreen, make_console


@contextmanager
def make_screen() -> Iterator[TextScreen]:
    """A screen for this process.

    Results go to the standard output: what scripts print there, and the summary with the digest. Progress, notes,
    warnings and errors go to the standard error.
    """
    out, err = make_console(), make_console(stderr=True)
    if not err.is_terminal:
        yield TextScreen(out, err, None)
        return
    with Live(Text("starting"), console=err, refresh_per_second=8, transient=True, redirect_stdout=False) as live:
        yield TextScreen(out, err, live)
