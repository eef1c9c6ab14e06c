"""Merges the recordings of all roles into one file in Chrome's trace format, which Perfetto opens.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paceline.engines.screen import Screen
from paceline.runtime.roles import SERVER, registered
from paceline.telemetry.tracing import STOPPED, Event, Header

_MAIN = "main"
_COMPUTE, _PUSH, _SUM = "forward+backward", "push", "sum"  # names of the spans that arrows connect

_header = msgspec.json.Decoder(Header)
_event = msgspec.json.Decoder(Event)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Part:
    """The recording of one process."""

    file: Path
    header: Header

    @property
    def label(self) -> str:
        """What the trace says about the process."""
        return f"pid {self.header.pid}" + (f" on {self.header.host}" if self.header.host else "")


@dataclass(slots=True)
class _Row:
    """The row of one name in the trace, with the recordings of all processes that had this name.

    Threads with the same name share one line of the row.
    """

    number: int
    role: str
    parts: list[_Part]
    threads: dict[str, int] = field(default_factory=lambda: {_MAIN: 1})
    stopped: bool = False
    turn: tuple[Any, Any] | None = None

    def events(self, zero_ns: dict[str, int], servers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The events of the row in Chrome's format.

        `zero_ns` has, for each clock, the time at which the trace begins; `servers` are the row numbers of servers.
        """
        for part in self.parts:
            zero = zero_ns[part.header.clock]
            for event in _events(part):
                thread = self.threads.setdefault(event.thread or _MAIN, len(self.threads) + 1)
                self.stopped = self.stopped or event.name == STOPPED
                shown: dict[str, Any] = {
                    "name": event.name,
                    "ph": "X" if event.took_ns >= 0 else "i",
                    "ts": (event.at_ns - zero) / 1000,
                    "pid": self.number,
                    "tid": thread,
                }
                if event.took_ns >= 0:
                    shown["dur"] = event.took_ns / 1000
                else:
                    shown["s"] = "t"
                if event.args:
                    shown["args"] = event.args
                yield shown
                for end in self._arrows(event, servers):
                    yield {"name": "gradients", "cat": "flow"} | {key: shown[key] for key in ("ts", "pid", "tid")} | end

    def _arrows(self, event: Event, servers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The ends of arrows at this event. An arrow leads from the push that seals a slot to its sum on a server."""
        if event.name == _COMPUTE and "slot" in event.args:
            self.turn = event.args["step"], event.args["slot"]
        elif event.name == _PUSH and "ahead" not in event.args and self.turn is not None:
            step, slot = self.turn
            for server in servers:
                yield {"ph": "s", "id": f"{step}.{slot}.{server}"}
        elif event.name == _SUM and "early" not in event.args and self.number in servers:
            yield {"ph": "f", "bp": "e", "id": f"{event.args.get('step')}.{event.args.get('slot')}.{self.number}"}

    def names(self) -> Iterator[dict[str, Any]]:
        """The names of the row and its threads, in Chrome's format. Call it after `events`, which finds the threads."""
        labels = ", ".join(part.label for part in self.parts)
        yield self._about("process_name", 0, name=self.role)
        yield self._about("process_sort_index", 0, sort_index=self.number)
        yield self._about("process_labels", 0, labels=labels)
        for name, number in self.threads.items():
            yield self._about("thread_name", number, name=name)
            yield self._about("thread_sort_index", number, sort_index=number)

    def _about(self, what: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "ts": 0, "pid": self.number, "tid": thread, "args": args}


def draw(folder: Path, file: Path, screen: Screen) -> None:
    """Merge the recordings in `folder` into `file`, and show the user whether that worked. Does not raise OSError."""
    try:
        stopped = merge(folder, file)
    except (OSError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        screen.note(f"--trace {file} was not written: {why}. The recordings are in {folder}", warning=True)
        return
    for role in stopped:
        screen.note(f"the trace of {role} is incomplete: its recordings reached the size limit", warning=True)
    screen.note(f"trace: {file} (open it in https://ui.perfetto.dev)")


def merge(folder: Path, file: Path) -> list[str]:
    """Write the recordings in `folder` to `file`, which is replaced only once it is complete.

    Returns:
        The names of the processes whose recordings reached the size limit.

    Raises:
        OSError: `file` cannot be written.
    """
    parts = _parts(folder)
    rows, zero_ns = _rows(parts), _zeros([part.header for part in parts])
    servers = [row.number for row in rows if row.role.partition("-")[0] == SERVER.name]
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as out:
            out.write(b'{"displayTimeUnit":"ms","traceEvents":[')
            separator = b"\n"
            for row in rows:
                for event in row.events(zero_ns, servers):
                    out.write(separator + _encode(event))
                    separator = b",\n"
                for about in row.names():
                    out.write(separator + _encode(about))
                    separator = b",\n"
            out.write(b"\n]}\n")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return [row.role for row in rows if row.stopped]


def _parts(folder: Path) -> list[_Part]:
    """All recordings in `folder`, the oldest first, except files without a header: their process died too early."""
    found = []
    for file in folder.glob("*.jsonl"):
        with file.open("rb") as lines:
            try:
                found.append(_Part(file, _header.decode(lines.readline())))
            except msgspec.DecodeError:
                continue
    return sorted(found, key=lambda part: part.header.began_ns + part.header.offset_ns)


def _rows(parts: list[_Part]) -> list[_Row]:
    """One row for each name: the coordinator, then servers, then workers, each by their numbers."""
    roles = sorted({part.header.role for part in parts}, key=_rank)
    return [_Row(i, role, [p for p in parts if p.header.role == role]) for i, role in enumerate(roles, 1)]


def _rank(role: str) -> tuple[int, list[tuple[int, str]]]:
    roles, kind = [known.name for known in registered()], role.partition("-")[0]
    words = [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", role)]
    return roles.index(kind) if kind in roles else len(roles), words


def _zeros(headers: list[Header]) -> dict[str, int]:
    """The start of the oldest recording, as a time of each clock.

    Each clock has one offset to Unix time, the first one recorded: Unix time may have been set since.
    """
    offsets: dict[str, int] = {}
    for header in headers:
        offsets.setdefault(header.clock, header.offset_ns)
    began = min((header.began_ns + offsets[header.clock] for header in headers), default=0)
    return {clock: began - offset for clock, offset in offsets.items()}


def _events(part: _Part) -> Iterator[Event]:
    yield Event(part.header.began_ns, -1, "", "start", {"pid": part.header.pid})
    with part.file.open("rb") as lines:
        lines.readline()
        for line in lines:
            try:
                yield _event.decode(line)
            except msgspec.DecodeError:
                continue  # the process was killed while it wrote this line
