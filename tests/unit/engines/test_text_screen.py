"""The output of a run, on a terminal and in a file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import pytest
from rich.live import Live
from rich.text import Text
from tests.kit.statuses import status, summary

from paceline.engines.screen import ScreenClosed
from paceline.engines.text_screen import TextScreen, make_console

STATUS: dict[str, Any] = {
    "state": "running",
    "mode": "ssp:3",
    "step": 40,
    "end_step": 100,
    "epoch": 1,
    "end_epoch": 3,
    "samples_per_s": 1234.5,
    "logs": {"loss[train]": 0.51234, "[/b]": 1.0},
    "metrics": {"accuracy": 0.875},
    "validating": [],
    "workers_alive": 2,
    "max_staleness": 3,
}
SUMMARY: dict[str, Any] = {
    "steps": 100,
    "samples": 6400,
    "seconds": 12.5,
    "samples_per_s": 512.0,
    "mode": "bsp",
    "slots": 4,
    "stopped": None,
    "workers": 2,
    "servers": 2,
    "metrics": {"a_metric_with_a_name_that_is_really_long": 0.5, "[bold]": float("nan")},
    "max_staleness": 0,
    "skipped_slots": 0,
    "wasted_slots": 0,
    "lost_workers": 0,
    "digest": "d" * 64,
    "run": "runs/" + "deep/" * 20 + "train-0001",
}

Show = Callable[[Callable[[TextScreen], None]], list[str]]


@pytest.fixture(params=["file", "terminal"])
def show(request: pytest.FixtureRequest) -> Show:
    def shown(use: Callable[[TextScreen], None]) -> list[str]:
        out = io.StringIO()
        console = make_console(out, terminal=request.param == "terminal")
        if request.param == "file":
            use(TextScreen(console, console, None))
        else:
            with Live(Text("starting"), console=console, auto_refresh=False, transient=True) as live:
                use(TextScreen(console, console, live))
        text = Text.from_ansi(out.getvalue()).plain
        return [line.rstrip() for line in text.splitlines()]

    return shown


def test_the_output_of_a_role_is_shown_unchanged(show: Show) -> None:
    lines = ["plain", "[red]not markup[/red]", "[/]", ":smile:", "x" * 300, "tab\there", ""]

    def use(screen: TextScreen) -> None:
        for line in lines:
            screen.line("worker-0", line, error=False)

    text = show(use)
    for line in lines:
        assert f"[worker-0] {line}".rstrip().expandtabs() in [t.expandtabs() for t in text]


def test_progress_is_shown_in_one_line(show: Show) -> None:
    def use(screen: TextScreen) -> None:
        screen.status(status(STATUS))
        screen.summary(summary(SUMMARY))

    text = show(use)
    expected = (
        "step 40/100 · epoch 1/3 · 1,234 samples/s · loss[train] 0.5123 · [/b] 1 · accuracy 0.875 · 2 workers · "
        "staleness ≤ 3"
    )
    assert expected in text


def test_the_summary_shows_the_whole_digest(show: Show) -> None:
    text = show(lambda screen: screen.summary(summary(SUMMARY)))
    rows = dict(line.split(None, 1) for line in text if line.strip())
    assert rows["digest"] == "d" * 64
    assert rows["run"] == SUMMARY["run"]
    assert rows["[bold]"] == "nan"
    assert rows["steps"] == "100"


def test_the_summary_shows_small_numbers(show: Show) -> None:
    metrics = {"lr": 4e-07, "loss": 0.25, "zero": 0.0, "huge": 123456.0, "small": -0.0005}
    text = show(lambda screen: screen.summary(summary(SUMMARY | {"metrics": metrics})))
    rows = dict(line.split(None, 1) for line in text if line.strip())
    shown = {name: rows[name] for name in metrics}
    assert shown == {"lr": "4e-07", "loss": "0.2500", "zero": "0.0000", "huge": "123456.0000", "small": "-0.0005"}


def test_the_summary_shows_restarts_and_rewinds(show: Show) -> None:
    calm = dict(line.split(None, 1) for line in show(lambda screen: screen.summary(summary(SUMMARY))) if line.strip())
    assert not {"restarts", "rewinds", "checkpoint", "warning"} & set(calm)
    lived = SUMMARY | {
        "restarts": {"worker": 2, "server": 0, "coordinator": 1},
        "rewinds": 1,
        "recomputed_steps": 17,
        "checkpoint": "i0001-v0000000100",
        "warning": "disk full",
    }
    rows = dict(line.split(None, 1) for line in show(lambda screen: screen.summary(summary(lived))) if line.strip())
    assert rows["restarts"] == "2 workers, 1 coordinator"
    assert rows["rewinds"] == "1 (17 steps computed again)"
    assert rows["checkpoint"] == "i0001-v0000000100"
    assert rows["warning"] == "disk full"


def test_a_failure_ends_with_one_line_of_advice(show: Show) -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: [oops]\n'

    def use(screen: TextScreen) -> None:
        screen.status(status(STATUS))
        screen.failure("worker-0 failed", trace, "see logs")

    text = [line for line in show(use) if line]
    assert text[-4:] == [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "ValueError: [oops]",
        "paceline: worker-0 failed (see logs)",
    ]


def test_notes_are_printed_plainly_and_warnings_are_marked(show: Show) -> None:
    def use(screen: TextScreen) -> None:
        screen.note("[hello]")
        screen.note("mind the gap", warning=True)

    text = show(use)
    assert "[hello]" in text
    assert "warning: mind the gap" in text


def test_results_go_to_one_stream_and_everything_else_to_the_other() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = TextScreen(make_console(out), make_console(err), None)
    screen.note("bsp · 2 slots")
    screen.note("a server is lost", warning=True)
    screen.line("worker-0", "accuracy 0.9", error=False)
    screen.line("worker-0", "deprecated", error=True)
    screen.status(status(STATUS))
    screen.summary(summary(SUMMARY))
    results = out.getvalue().splitlines()
    assert results[0] == "[worker-0] accuracy 0.9"
    assert results[1].split() == ["steps", "100"]
    assert any(line.split() == ["digest", "d" * 64] for line in results)
    rest = err.getvalue().splitlines()
    assert rest[:3] == ["bsp · 2 slots", "warning: a server is lost", "[worker-0] deprecated"]
    assert rest[3].startswith("step 40/100")
    assert len(rest) == 4


@pytest.mark.parametrize("error", [False, True])
def test_a_closed_output_is_told_once(error: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        consoles = (io.StringIO(), closed) if error else (closed, io.StringIO())
        screen = TextScreen(make_console(consoles[0]), make_console(consoles[1]), None)
        with pytest.raises(ScreenClosed, match="the reader of the output has closed it"):  # noqa: PT012
            screen.line("worker-0", "x", error=error)
            screen.status(status(STATUS))
            screen.note("more")
        screen.line("worker-0", "y", error=error)
        screen.summary(summary(SUMMARY))
        screen.failure("why", "", "what to do")
