"""Shows a run: with a progress line that is updated in place on a terminal, as plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.coordinator.json_numbers import shown
from paceline.coordinator.status import describe
from paceline.messages.status import RunSummary, Status

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")


class TextScreen:
    """Prints lines; with `live`, the last line of the terminal shows the newest status."""

    def __init__(self, console: Console, live: Live | None, every_s: float = 5.0) -> None:
        self._console = console
        self._live = live
        self._every_s = every_s
        self._next = 0.0
        self._shown: str | None = None
        self._last: str | None = None

    def line(self, name: str, text: str) -> None:
        """Show a line that the process called `name` printed."""
        if self._live is None:  # print without rich, which takes a millisecond a line
            self._console.file.write(f"[{name}] {text}\n")
            return
        colour = _COLOURS[sum(name.encode()) % len(_COLOURS)]
        self._console.print(Text(f"[{name}] ", colour) + Text(text), soft_wrap=True)

    def status(self, status: Status) -> None:
        """Show the newest status."""
        self._last = describe(status)
        self._console.file.flush()
        if self._live is not None:
            self._live.update(Text(self._last, "bold", no_wrap=True, overflow="ellipsis"))
            return
        now = time.monotonic()
        if now >= self._next and self._last != self._shown and status.end_step is not None:
            self._next = now + self._every_s
            self._shown = self._last
            self._console.print(self._last, soft_wrap=True, highlight=False)

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a message to the user."""
        self._console.print(
            Text(f"warning: {text}" if warning else text, "yellow" if warning else "bold"), soft_wrap=True
        )

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """Show why the run failed. Nothing is shown after this."""
        self._finish()
        if trace:
            self._console.print(Text(trace.rstrip()), soft_wrap=True)
        self._console.print(Text(f"paceline: {reason} ({advice})", "bold red"), soft_wrap=True)

    def summary(self, summary: RunSummary) -> None:
        """Show the summary of a run that is done."""
        self._finish()
        rows: dict[str, str] = {}
        for key in ("steps", "samples", "seconds", "samples_per_s", "mode", "slots", "workers", "servers"):
            value = getattr(summary, key)
            rows[key] = f"{value:,.1f}" if isinstance(value, float) else str(value)
        rows |= {key: shown(value, ".4f") for key, value in summary.metrics.items()}
        if summary.replicas:
            rows["replicas"] = str(summary.replicas)
        if summary.stopped:
            rows["stopped"] = summary.stopped
        for key in ("max_staleness", "skipped_slots", "wasted_slots", "lost_workers"):
            rows[key] = str(getattr(summary, key))
        restarts = summary.restarts or {}
        if any(restarts.values()):
            rows["restarts"] = ", ".join(f"{count} {role}" for role, count in restarts.items() if count)
        if summary.failovers:
            rows["failovers"] = f"{summary.failovers} (at most {summary.failover_s:.1f} s without a commit)"
        if summary.rewinds:
            rows["rewinds"] = f"{summary.rewinds} ({summary.recomputed_steps} steps computed again)"
        for key in ("checkpoint", "warning"):
            if getattr(summary, key):
                rows[key] = getattr(summary, key)
        rows |= {key: str(getattr(summary, key)) for key in ("digest", "run")}
        width = max(map(len, rows))
        for key, text in rows.items():  # no rich table: it would cut off the digest on a narrow screen
            self._console.print(Text(f"{key:<{width}}  {text}"), soft_wrap=True)

    def _finish(self) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()
            self._live = None
        if self._last is not None and self._last != self._shown:
            self._shown = self._last
            self._console.print(self._last, soft_wrap=True, highlight=False)


def make_console(file: IO[str] | None = None, *, terminal: bool | None = None) -> Console:
    """A console that prints text unchanged: rich markup in names or in a script's output has no effect."""
    return Console(file=file, force_terminal=terminal, highlight=False, markup=False, emoji=False)


@contextmanager
def make_screen() -> Iterator[TextScreen]:
    """A screen for this process's standard output."""
    console = make_console()
    if not console.is_terminal:
        yield TextScreen(console, None)
        return
    with Live(Text("starting"), console=console, refresh_per_second=8, transient=True) as live:
        yield TextScreen(console, live)
