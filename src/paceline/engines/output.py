"""What a child process prints: kept in its log, and handed to the launcher line by line."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from paceline.runtime.last_words import MARK

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16
_MARK = MARK.encode()


class Stream(Enum):
    """Where a process printed a line."""

    OUT = "standard output"
    ERR = "standard error"
    LAST = "its last words"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that the process called `name` printed."""

    name: str
    text: str
    stream: Stream = Stream.OUT


@dataclass(frozen=True, slots=True)
class Exit:
    """Start number `start` of the process called `name` has ended; a negative `code` is the signal that killed it."""

    name: str
    start: int
    code: int


class Output:
    """The standard output and standard error of the process called `name`. Its log is `log`, which is appended to.

    Raises:
        OSError: the log cannot be opened.
    """

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._is_kept = True
        log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            self._log = undo.enter_context(log.open("ab", buffering=0))
            ends = [tuple(map(undo.enter_context, _pipe())) for _ in range(2)]
            undo.pop_all()
        self._reading: list[IO[bytes]] = [reading for reading, _ in ends]
        self.writing: list[IO[bytes]] = [writing for _, writing in ends]
        """The ends for the process: its standard output and its standard error."""

    def handed_over(self) -> None:
        """Close the ends for the process, which has its own copies now."""
        for file in self.writing:
            file.close()

    def close(self) -> None:
        """Close all files. `read` must not run."""
        for file in (*self.writing, *self._reading, self._log):
            file.close()

    def read(self, put: Callable[[Line], None]) -> None:
        """Pass each line to `put` as soon as it is complete, until the process and its children have ended."""
        with self._log, selectors.DefaultSelector() as waiting, contextlib.ExitStack() as files:
            for pipe, stream in zip(self._reading, (Stream.OUT, Stream.ERR), strict=True):
                files.enter_context(pipe)
                waiting.register(pipe, selectors.EVENT_READ, _Lines(self._name, stream))
            while waiting.get_map():
                for key, _ in waiting.select():
                    data = os.read(key.fd, _CHUNK)
                    if not data:
                        waiting.unregister(key.fileobj)
                    for raw, line in key.data.add(data):
                        self._keep(raw)
                        put(line)

    def _keep(self, raw: bytes) -> None:
        """Write a line to the log. If the disk is full, the process must not stop with it, nor its lines on screen."""
        if self._is_kept:
            try:
                self._log.write(raw)
            except OSError as error:
                self._is_kept = False
                logger.warning("%s is no longer written: %s", self._log.name, error.strerror)


class _Lines:
    """Cuts the bytes of one stream into lines. A line without an end is cut after 64 KiB."""

    def __init__(self, name: str, stream: Stream) -> None:
        self._name = name
        self._stream = stream
        self._rest = b""

    def add(self, data: bytes) -> Iterator[tuple[bytes, Line]]:
        """Yield each line that `data` completes, as bytes for the log and as a `Line`. No data is the end."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) >= _CHUNK):
            whole, self._rest = [*whole, self._rest], b""
        for raw in whole:
            if self._stream is Stream.ERR and _MARK in raw:
                before, _, words = raw.partition(_MARK)
                if before:  # a line that the process did not end, such as a progress bar
                    yield self._line(before, Stream.ERR)
                yield self._line(words, Stream.LAST)
            else:
                yield self._line(raw, self._stream)

    def _line(self, raw: bytes, stream: Stream) -> tuple[bytes, Line]:
        return raw + b"\n", Line(self._name, raw.decode(errors="replace").rstrip("\r"), stream)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb", buffering=0)
