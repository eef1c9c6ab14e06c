"""Reads a trace and checks it against Chrome's trace format, by the rules that Perfetto's importer needs.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NEEDED = {"X": {"dur"}, "i": {"s"}, "M": {"args"}, "s": {"id"}, "f": {"id", "bp"}}
_ABOUT = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


@dataclass(slots=True)
class Trace:
    """Rows from top to bottom, and their events in the order of the file."""

    rows: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    threads: dict[str, list[str]] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, row: str, name: str) -> list[dict[str, Any]]:
        """Events of one name in one row."""
        return [event for event in self.events[row] if event["name"] == name]


def read_trace(file: Path) -> Trace:
    """Read a trace; raise AssertionError if the file is not in the format."""
    document = json.loads(file.read_text())
    assert isinstance(document, dict), "the trace must be a JSON object"
    events = document["traceEvents"]
    for event in events:
        _check(event)
    found = Trace()
    names = _about(events, "process_name")
    order = _about(events, "process_sort_index")
    labels = _about(events, "process_labels")
    assert len(set(names.values())) == len(names), "each name has one row"
    for pid, _ in sorted(names, key=lambda key: order[key]):
        row = names[pid, 0]
        found.rows.append(row)
        found.labels[row] = labels[pid, 0]
        threads = {tid: name for (of, tid), name in _about(events, "thread_name").items() if of == pid}
        found.threads[row] = [threads[tid] for tid in sorted(threads)]
        found.events[row] = [event for event in events if event["pid"] == pid and event["ph"] != "M"]
        assert {event["tid"] for event in found.events[row]} <= set(threads), "every thread has a name"
        for tid in threads:
            _check_nesting([e for e in found.events[row] if e["tid"] == tid and e["ph"] == "X"])
    assert {event["pid"] for event in events} == {pid for pid, _ in names}, "every process has a name"
    return found


def _check(event: dict[str, Any]) -> None:
    assert event["ph"] in _NEEDED, event
    assert {"name", "ph", "ts", "pid", "tid"} | _NEEDED[event["ph"]] <= set(event), event
    assert isinstance(event["name"], str), event
    assert isinstance(event["pid"], int), event
    assert isinstance(event["tid"], int), event
    assert event["ts"] >= 0, event
    assert event.get("dur", 0) >= 0, event
    assert event.get("s", "t") in ("t", "p", "g"), event
    assert isinstance(event.get("args", {}), dict), event
    if event["ph"] == "M":
        assert _ABOUT[event["name"]] in event["args"], event


def _about(events: list[dict[str, Any]], name: str) -> dict[tuple[int, int], Any]:
    return {(e["pid"], e["tid"]): e["args"][_ABOUT[name]] for e in events if e["ph"] == "M" and e["name"] == name}


def _check_nesting(spans: list[dict[str, Any]]) -> None:
    """Check that two spans of one thread are nested or disjoint; Perfetto drops spans that cross."""
    open_until: list[float] = []
    for event in sorted(spans, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3, f"crosses another span: {event}"
        open_until.append(end)
