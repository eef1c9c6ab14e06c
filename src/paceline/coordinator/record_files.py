"""Writes the records of a run beside its log: events.jsonl, and on request TensorBoard scalars. Off every other path.

A thread reads the log through a connection of its own. What it has written it knows from the files themselves: after a
kill it goes on there, and if a file is lost it is written anew. A full disk ends the records, never the run.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

from paceline.coordinator.reader import LogReader
from paceline.coordinator.records import START, Place, Record, derive, place_of
from paceline.coordinator.tensorboard import ScalarFile
from paceline.errors import StateError

logger = logging.getLogger(__name__)

EVENTS = "events.jsonl"
_LARGEST = 8 << 20  # bytes of the newest file
_OLDER = 3  # older files that are kept: events.1.jsonl is the newest of them
_EVERY_S = 1.0


def event_files(run: Path) -> list[Path]:
    """The event files of a run that are there, oldest first."""
    older = [run / f"events.{number}.jsonl" for number in range(_OLDER, 0, -1)]
    return [file for file in (*older, run / EVENTS) if file.exists()]


def read_events(run: Path) -> list[Record]:
    """The records in the event files of a run; a line that was cut off by a kill is left out."""
    found = []
    for file in event_files(run):
        for line in file.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Record))
            except msgspec.DecodeError:
                continue
    return found


class EventFile:
    """Appends records to events.jsonl in the run directory, and keeps its size bounded."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._path = run / EVENTS
        self._cut_last_line()

    @property
    def place(self) -> Place:
        """How far the records in the files go."""
        return place_of(read_events(self._run))

    def _cut_last_line(self) -> None:
        """Remove a last line that a kill has cut off."""
        if self._path.exists():
            content = self._path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with self._path.open("r+b") as file:
                    file.truncate(whole)

    def append(self, records: list[Record]) -> None:
        """Write `records` at the end.

        Raises:
            OSError: the disk is full or gone.
        """
        for start in range(0, len(records), 1000):
            lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records[start : start + 1000])
            if self._path.exists() and self._path.stat().st_size + len(lines) > _LARGEST:
                self._rotate()
            with self._path.open("ab") as file:
                file.write(lines)

    def _rotate(self) -> None:
        files = [self._path, *(self._run / f"events.{number}.jsonl" for number in range(1, _OLDER + 1))]
        for older, newer in zip(reversed(files), list(reversed(files))[1:], strict=False):
            if newer.exists():
                newer.replace(older)


class RecordThread:
    """Keeps the records of a run up to date. `close` writes what is left; no error of a file leaves the thread."""

    def __init__(self, run: Path, log: Path, *, tensorboard: bool = False) -> None:
        self._run = run
        self._log = log
        self._tensorboard = tensorboard
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="paceline-records", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the last records, and end the thread."""
        self._ended.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            self._follow()
        except (OSError, StateError) as error:
            logger.warning("the records of this run end here: %s; `paceline log` reads the log itself", error)

    def _follow(self) -> None:
        events = EventFile(self._run)
        place = events.place
        scalars = ScalarFile(self._run / "tb") if self._tensorboard else None
        ended = False
        try:
            while not ended:
                ended = self._ended.wait(_EVERY_S)
                with LogReader(self._log) as reader, reader.snapshot():
                    records, place = derive(reader, place)
                    if scalars is not None:
                        scalars.follow(reader)
                if records:
                    events.append(records)
        finally:
            if scalars is not None:
                scalars.close()


def rebuild(run: Path, log: Path) -> int:
    """Write the event files of a run anew from its log; returns the number of records."""
    for file in event_files(run):
        file.unlink()
    with LogReader(log) as reader, reader.snapshot():
        records, _ = derive(reader, START)
    EventFile(run).append(records)
    return len(records)
