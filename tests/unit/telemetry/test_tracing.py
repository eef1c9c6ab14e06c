"""A process records its spans and instants in a file."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.telemetry import tracing


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    tracing.stop()


def recorded(folder: Path, role: str = "server-0") -> list[list[Any]]:
    """All events of a role; the headers are left out."""
    lines = [line for file in sorted(folder.glob(f"{role}.*")) for line in file.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if isinstance(event, list)]


def test_tracing_that_is_off_allocates_no_span_and_writes_no_file(tmp_path: Path) -> None:
    assert tracing.span("sum", step=1) is tracing.span("apply")
    with tracing.span("sum"):
        tracing.instant("commit")
    tracing.stop()
    assert not list(tmp_path.iterdir())


def test_spans_and_instants_are_recorded_with_their_times_and_threads(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    tracing.start("server-0", tmp_path / "trace")
    with tracing.span("apply", step=3, path=Path("x")):
        with tracing.span("sum"):
            time.sleep(0.002)
        tracing.instant("commit", version=4)
    with pytest.raises(ZeroDivisionError), tracing.span("fails"):
        _ = 1 / 0
    other = threading.Thread(target=lambda: tracing.instant("elsewhere"), name="applier")
    other.start()
    other.join()
    tracing.stop()
    tracing.instant("too late")

    events = {event[3]: event for event in recorded(tmp_path / "trace")}
    assert list(events) == ["sum", "commit", "apply", "fails", "elsewhere"]
    apply, inner = events["apply"], events["sum"]
    assert before <= apply[0] <= inner[0] <= inner[0] + inner[1] <= apply[0] + apply[1] <= time.monotonic_ns()
    assert inner[1] >= 2_000_000
    assert apply[4] == {"step": 3, "path": "x"}
    assert events["commit"][1] == -1
    assert (apply[2], events["elsewhere"][2]) == ("", "applier")


def test_a_killed_process_loses_at_most_its_last_half_second(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from paceline.telemetry import tracing\n"
        "tracing.start('server-0', Path(sys.argv[1]))\n"
        "tracing.instant('early')\n"
        "print('on', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(1.0)
        child.kill()
    assert [event[3] for event in recorded(tmp_path)] == ["early"]


def test_the_end_of_the_process_writes_all_events(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from paceline.telemetry import tracing\n"
        "tracing.start('server-0', Path(sys.argv[1]))\n"
        "tracing.instant('last')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert [event[3] for event in recorded(tmp_path)] == ["last"]


def test_a_role_has_a_limit_over_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "MAX_BYTES", 20_000)
    monkeypatch.setattr(tracing, "_BATCH", 10)
    (tmp_path / "server-00.1.jsonl").write_bytes(b"x" * 100_000)  # a file of another role
    with caplog.at_level(logging.WARNING, "paceline.telemetry.tracing"):
        tracing.start("server-0", tmp_path)
        for number in range(1000):
            tracing.instant("event", number=number)
        tracing.stop()
        events = recorded(tmp_path)
        assert 300 < len(events) < 500
        assert [event[4]["number"] for event in events[:-1]] == list(range(len(events) - 1))
        assert events[-1][3] == tracing.STOPPED
        assert len(caplog.messages) == 1
        assert "the trace of server-0 ends here" in caplog.messages[0]

        tracing.start("server-0", tmp_path)  # a restarted process of the role
        for number in range(1000):
            tracing.instant("event", number=number)
        tracing.stop()
    assert len(caplog.messages) == 2
    assert len(recorded(tmp_path)) < len(events) + 15
    assert sum(file.stat().st_size for file in tmp_path.glob("server-0.*")) < 21_000


def test_a_role_at_its_limit_records_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_BYTES", 0)
    tracing.start("server-0", tmp_path)
    tracing.instant("event")
    deadline = time.monotonic() + 5
    while tracing.span("sum") is not tracing.span("apply"):
        assert time.monotonic() < deadline, "tracing is off once the writer has seen the limit"
        time.sleep(0.01)


def test_the_memory_of_a_recording_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_MAX_WAITING", 50)
    with caplog.at_level(logging.WARNING, "paceline.telemetry.tracing"):
        tracing.start("server-0", tmp_path)
        for number in range(80):
            tracing.instant("event", number=number)
        tracing.stop()
    assert len(recorded(tmp_path)) == 50
    assert "lacks 30 events" in caplog.text


def test_a_trace_file_that_cannot_be_created_does_not_fail_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "paceline.telemetry.tracing"):
        tracing.start("server-0", tmp_path / "file")
    assert "cannot record a trace of server-0" in caplog.text
    with tracing.span("sum"):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer versions of Python warn about a fork with threads
def test_a_forked_process_records_nothing(tmp_path: Path) -> None:
    tracing.start("worker-0", tmp_path)
    tracing.instant("parent")
    child = os.fork()
    if child == 0:
        os._exit(tracing.span("sum") is tracing.span("apply"))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1, "tracing is off in the forked process"
    tracing.stop()
    assert [event[3] for event in recorded(tmp_path, "worker-0")] == ["parent"]
