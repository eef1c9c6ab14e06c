"""Sets up the log of a process. Only the `main` of a process calls this; a library must not."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO

_ROOT = "paceline"


def set_up(level: str, form: str, *, process: str, start: int = 0, stream: IO[str] | None = None) -> None:
    """Write Paceline's log records of `level` and above to standard error, one a line, as ``text`` or ``json``.

    `process` is the name of this process in its run, `start` the number of its start. Only Paceline's own loggers
    change, not those of the user's script. A second call replaces the first.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_JsonFormatter(process, start) if form == "json" else _TextFormatter())
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, which docs/reference.md describes."""

    def __init__(self, process: str, start: int) -> None:
        super().__init__()
        self._process = process
        self._start = start

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        document: dict[str, object] = {
            "at": round(record.created, 6),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "process": self._process,
            "start": self._start,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps(document)
