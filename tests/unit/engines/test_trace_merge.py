"""The recordings of several processes are merged into one file that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.chrome_trace import Trace, read_trace

from paceline.engines import trace_merge
from paceline.telemetry.tracing import STOPPED, Event, Header

MS = 1_000_000


class Screen:
    def __init__(self) -> None:
        self.notes: list[tuple[str, bool]] = []

    def note(self, text: str, *, warning: bool = False) -> None:
        self.notes.append((text, warning))

    def line(self, name: str, text: str, *, error: bool) -> None: ...
    def status(self, status: Any) -> None: ...
    def failure(self, reason: str, trace: str, advice: str) -> None: ...
    def summary(self, summary: Any) -> None: ...


def record(
    folder: Path,
    role: str,
    pid: int,
    *events: Event,
    began_ms: int = 0,
    clock: str = "a",
    offset: int = 0,
    host: str = "",
) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{role}.{pid}.{began_ms}.jsonl"
    lines = [Header(role, pid, clock, began_ms * MS, offset, host), *events]
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return file


def span(at_ms: float, took_ms: float, name: str, thread: str = "", **args: Any) -> Event:
    return Event(round(at_ms * MS), round(took_ms * MS), thread, name, args)


def instant(at_ms: float, name: str) -> Event:
    return Event(round(at_ms * MS), -1, "", name, {})


def merged(tmp_path: Path) -> Trace:
    trace_merge.merge(tmp_path / "trace", tmp_path / "out.json")
    return read_trace(tmp_path / "out.json")


def test_every_role_has_a_row_in_a_fixed_order(tmp_path: Path) -> None:
    roles = ["worker-10", "worker-j1a2b", "server-1", "worker-2", "server-10", "coordinator", "server-0", "other"]
    for number, role in enumerate(roles):
        record(tmp_path / "trace", role, number + 100, span(1, 2, "x"))
    expected = ["coordinator", "server-0", "server-1", "server-10", "worker-2", "worker-10", "worker-j1a2b", "other"]
    assert merged(tmp_path).rows == expected


def test_a_process_of_another_host_is_labelled_with_it(tmp_path: Path) -> None:
    record(tmp_path / "trace", "worker-0", 7, span(1, 2, "x"), host="a")
    record(tmp_path / "trace", "worker-0", 7, span(9, 2, "x"), began_ms=5, host="b")
    assert merged(tmp_path).labels == {"worker-0": "pid 7 on a, pid 7 on b"}


def test_times_count_from_the_start_of_the_earliest_process(tmp_path: Path) -> None:
    record(tmp_path / "trace", "worker-0", 1, span(1010.5, 2.25, "push", step=7), began_ms=1000)
    record(tmp_path / "trace", "server-0", 2, instant(1012, "commit"), began_ms=1005)
    found = merged(tmp_path)
    (push,) = found.of("worker-0", "push")
    (commit,) = found.of("server-0", "commit")
    assert (push["ts"], push["dur"], push["args"]) == (10_500, 2_250, {"step": 7})
    assert (commit["ts"], commit["ph"]) == (12_000, "i")


def test_processes_of_one_role_share_its_row(tmp_path: Path) -> None:
    record(tmp_path / "trace", "server-0", 2, span(3000, 1, "sum", "applier"), span(3001, 1, "sum"), began_ms=2000)
    record(tmp_path / "trace", "server-0", 1, span(1000, 1, "sum"), span(1001, 1, "sum", "applier"), began_ms=500)
    found = merged(tmp_path)
    assert found.rows == ["server-0"]
    assert [event["args"]["pid"] for event in found.of("server-0", "start")] == [1, 2]
    assert found.labels["server-0"] == "pid 1, pid 2"
    assert found.threads["server-0"] == ["main", "applier"]
    assert [e["tid"] for e in found.of("server-0", "sum")] == [1, 2, 2, 1]


def test_recordings_of_two_boots_are_placed_by_the_time_of_day(tmp_path: Path) -> None:
    """After a reboot the monotonic clock begins again. Within one boot, a change of the time of day has no effect."""
    hour = 3_600_000
    record(tmp_path / "trace", "worker-0", 1, span(hour + 5, 1, "old"), began_ms=hour, clock="a", offset=0)
    record(tmp_path / "trace", "worker-1", 2, span(hour + 7, 1, "old"), began_ms=hour + 1, clock="a", offset=9 * MS)
    record(tmp_path / "trace", "worker-0", 3, span(5, 1, "new"), began_ms=1, clock="b", offset=2 * hour * MS)
    found = merged(tmp_path)
    assert [found.of(role, "old")[0]["ts"] for role in ("worker-0", "worker-1")] == [5_000, 7_000]
    assert found.of("worker-0", "new")[0]["ts"] == (hour + 5) * 1000


def test_the_incomplete_end_of_a_recording_is_ignored(tmp_path: Path) -> None:
    torn = record(tmp_path / "trace", "server-0", 1, span(1, 1, "sum"), span(2, 1, "sum"))
    torn.write_bytes(torn.read_bytes()[:-12])
    (tmp_path / "trace" / "server-1.7.0.jsonl").write_bytes(b'{"role":"serv')
    (tmp_path / "trace" / "server-2.8.0.jsonl").touch()
    found = merged(tmp_path)
    assert found.rows == ["server-0"]
    assert len(found.of("server-0", "sum")) == 1


def test_a_run_without_recordings_has_an_empty_trace(tmp_path: Path) -> None:
    assert merged(tmp_path).rows == []


def test_the_screen_shows_the_file_and_the_roles_at_their_limit(tmp_path: Path) -> None:
    record(tmp_path / "trace", "worker-0", 1, span(1, 1, "push"), instant(2, STOPPED))
    screen = Screen()
    trace_merge.draw(tmp_path / "trace", tmp_path / "out.json", screen)
    assert [warning for _, warning in screen.notes] == [True, False]
    assert "the trace of worker-0 is incomplete" in screen.notes[0][0]
    assert "ui.perfetto.dev" in screen.notes[1][0]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    record(tmp_path / "trace", "worker-0", 1)
    screen = Screen()
    trace_merge.draw(tmp_path / "trace", tmp_path / "gone" / "out.json", screen)
    ((text, warning),) = screen.notes
    assert warning
    assert text.startswith(f"--trace {tmp_path / 'gone' / 'out.json'} was not written: ")
    assert str(tmp_path / "trace") in text


def test_an_interrupted_merge_keeps_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "trace", "worker-0", 1, span(1, 1, "push"))
    file = tmp_path / "out.json"
    file.write_text("older")

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_merge, "_events", interrupted)
    screen = Screen()
    trace_merge.draw(tmp_path / "trace", file, screen)
    assert "interrupted" in screen.notes[0][0]
    assert file.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "trace"]


def test_names_and_arguments_are_escaped_as_json(tmp_path: Path) -> None:
    record(tmp_path / "trace", "worker-0", 1, span(1, 1, 'a "quoted" · name', why="ü\n"))
    (event,) = merged(tmp_path).of("worker-0", 'a "quoted" · name')
    assert event["args"] == {"why": "ü\n"}
    assert json.loads((tmp_path / "out.json").read_text())["displayTimeUnit"] == "ms"


def test_an_arrow_leads_from_each_sealing_push_to_its_sums(tmp_path: Path) -> None:
    turn = [span(1, 5, "forward+backward", step=7, slot=1), span(6, 1, "push", step=7)]
    record(tmp_path / "trace", "worker-0", 1, span(3, 1, "push", ahead=True), *turn, span(9, 1, "push", ahead=True))
    for server in (0, 1):
        early = span(4, 1, "sum", step=7, slot=1, early=True)
        record(tmp_path / "trace", f"server-{server}", 2 + server, early, span(8 + server, 1, "sum", step=7, slot=1))
    found = merged(tmp_path)
    starts = [event for event in found.of("worker-0", "gradients") if event["ph"] == "s"]
    assert [event["ts"] for event in starts] == [6_000, 6_000], "each server has an arrow from the push that seals"
    ends = [*found.of("server-0", "gradients"), *found.of("server-1", "gradients")]
    assert [(event["ph"], event["ts"]) for event in ends] == [("f", 8_000), ("f", 9_000)]
    assert sorted(event["id"] for event in starts) == sorted(event["id"] for event in ends)
