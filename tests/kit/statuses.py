"""Statuses and summaries for tests, made from a few fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.messages.status import RunSummary, Status
from paceline.testing.chaos.watch import Process, Seen

PIDS = {"coordinator": 10, "server-0": 20, "server-1": 21, "worker-0": 30, "worker-1": 31, "worker-2": 32}


def seen(at: float = 0.0, version: int = 5, *, pids: dict[str, int] | None = None, **changes: Any) -> Seen:
    """Return the view of a healthy run of 3 workers and 2 servers; `pids` replaces pids, and 0 removes a process."""
    found = {name: pid for name, pid in {**PIDS, **(pids or {})}.items() if pid}
    fields: dict[str, Any] = {
        "at": at,
        "generation": 1,
        "incarnation": 0,
        "version": version,
        "step": max(0, version),
        "end_step": 1000,
        "state": "running",
        "rewinding": False,
        "workers_alive": sum(name.startswith("worker") for name in found),
        "lost_workers": 0,
        "processes": {name: Process(name, name.split("-")[0], pid) for name, pid in found.items()},
    }
    return Seen(**{**fields, **changes})


def status(*documents: Mapping[str, Any], **fields: Any) -> Status:
    """Return a status made from JSON-like values; later documents replace fields of earlier ones."""
    return msgspec.convert({key: value for d in (*documents, fields) for key, value in d.items()}, Status)


def summary(*documents: Mapping[str, Any], **fields: Any) -> RunSummary:
    """Return a summary made from JSON-like values; later documents replace fields of earlier ones."""
    return msgspec.convert({key: value for d in (*documents, fields) for key, value in d.items()}, RunSummary)
