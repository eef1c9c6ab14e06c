"""Records what a process did and when, as spans and instants. Costs almost nothing while recording is off.

All processes of a host use the same clock (CLOCK_MONOTONIC), so that their recordings can be merged.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
"""The size limit of the recordings of one name, all of its processes together: about a million events."""

STOPPED = "recording stopped"
"""The name of the last event in a recording that reached the size limit."""

_FLUSH_S = 0.5  # seconds between writes: a killed process loses the events of this time
_MAX_WAITING = 200_000  # events kept in memory while the disk is slow; further events are dropped
_BATCH = 4096

_Event = tuple[int, int, str, str, dict[str, Any]]


class Header(msgspec.Struct, frozen=True):
    """The first line of a recording: the process and its clock. A time of the clock plus `offset_ns` is Unix time.

    `host` is the name of the process's host in a run on several hosts.
    """

    role: str
    pid: int
    clock: str
    began_ns: int
    offset_ns: int
    host: str = ""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Any later line of a recording. `took_ns` is -1 for an instant; `thread` is empty for the main thread."""

    at_ns: int
    took_ns: int
    thread: str
    name: str
    args: dict[str, Any]


class Span(Protocol):
    """A period of time, used with ``with``: it is recorded when the block ends, also if the block raises."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None


class _OpenSpan:
    __slots__ = ("_args", "_began", "_name", "_recorder")

    def __init__(self, recorder: _Recorder, name: str, args: dict[str, Any]) -> None:
        self._recorder = recorder
        self._name = name
        self._args = args
        self._began = 0

    def __enter__(self) -> None:
        self._began = time.monotonic_ns()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._recorder.add(self._began, time.monotonic_ns() - self._began, self._name, self._args)


_OFF = _NoSpan()
_recorder: _Recorder | None = None


def span(name: str, **args: Any) -> Span:
    """A span to be entered with ``with``; `args` are shown beside it."""
    return _OFF if _recorder is None else _OpenSpan(_recorder, name, args)


def is_on() -> bool:
    """Whether this process records: a caller on a hot path then makes the name and the arguments of its spans."""
    return _recorder is not None


def instant(name: str, **args: Any) -> None:
    """Record an event without duration, at the present time; `args` are shown beside it."""
    recorder = _recorder
    if recorder is not None:
        recorder.add(time.monotonic_ns(), -1, name, args)


def start(role: str, path: Path, host: str = "") -> None:
    """Record what this process does as `role` on `host`, in a file of its own in the folder `path`.

    If the file cannot be made, this only logs a warning and records nothing: a process must not fail for its trace.
    """
    global _recorder
    stop()
    try:
        _recorder = _Recorder(role, path, host)
    except OSError as error:
        logger.warning("cannot record a trace of %s: %s", role, error)
        return
    atexit.register(stop)


def stop() -> None:
    """Stop recording, and write the events that are not written yet. Does nothing while recording is off."""
    global _recorder
    recorder, _recorder = _recorder, None
    atexit.unregister(stop)
    if recorder is not None:
        recorder.close()


def _forget() -> None:
    """Switch recording off in a forked process: its parent writes the events that are not written yet."""
    global _recorder
    _recorder = None


os.register_at_fork(after_in_child=_forget)


class _Recorder:
    """Writes the events of one process to its file in a separate thread, so that no other thread waits for the disk."""

    def __init__(self, role: str, folder: Path, host: str) -> None:
        self._role = role
        self._waiting: deque[_Event] = deque()
        self._dropped = 0
        self._over = False
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        folder.mkdir(parents=True, exist_ok=True)
        self._room = MAX_BYTES - sum(file.stat().st_size for file in folder.glob(f"{role}.*"))
        self._file = (folder / f"{role}.{os.getpid()}.{time.time_ns()}.jsonl").open("xb", buffering=0)
        now = time.monotonic_ns()
        header = Header(role, os.getpid(), _clock(), now, time.time_ns() - now, host)
        self._file.write(self._encoder.encode(header) + b"\n")
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="tracing", daemon=True)
        self._writer.start()

    def add(self, at_ns: int, took_ns: int, name: str, args: dict[str, Any]) -> None:
        """Add an event. Any thread may call this."""
        if len(self._waiting) >= _MAX_WAITING:
            self._dropped += 1
            return
        thread = threading.current_thread()
        label = "" if thread is threading.main_thread() else thread.name
        self._waiting.append((at_ns, took_ns, label, name, args))

    def close(self) -> None:
        """Write the events that are not written yet, and end the thread."""
        self._closing.set()
        self._writer.join()

    def _write_on(self) -> None:
        with self._file:
            while not (self._over or self._closing.wait(_FLUSH_S)):
                self._flush()
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting and not self._over:
                self._write([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
        except OSError as error:
            self._give_up(str(error))
        if self._dropped and not self._over:
            dropped, self._dropped = self._dropped, 0
            logger.warning("the trace of %s lacks %d events: the disk was too slow", self._role, dropped)

    def _write(self, events: list[_Event]) -> None:
        text = b"".join([self._encoder.encode(event) + b"\n" for event in events])
        if len(text) <= self._room:
            self._room -= len(text)
            self._file.write(text)
            return
        self._file.write(self._encoder.encode((events[0][0], -1, "", STOPPED, {})) + b"\n")
        self._give_up(f"its recordings reached the limit of {MAX_BYTES >> 20} MiB")

    def _give_up(self, why: str) -> None:
        """Stop recording and log why; the process continues."""
        global _recorder
        if _recorder is self:
            _recorder = None
        self._over = True
        self._waiting.clear()
        logger.warning("the trace of %s ends here: %s", self._role, why)


def _clock() -> str:
    """A name for this host's monotonic clock, which is another clock after every boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"pid {os.getpid()}"
