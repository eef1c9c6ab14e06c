"""What agents return to the launcher: the output of their roles, the files that scripts save, and recordings."""

from __future__ import annotations

import logging
import os
from pathlib import Path, PurePosixPath

from paceline.messages.hosts import SavedPiece

logger = logging.getLogger(__name__)


class RemoteLogs:
    """Appends the lines of roles on other hosts to their logs in the run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_kept = True

    def begin(self, name: str) -> None:
        """Make the log of a role, which perhaps prints nothing."""
        self._append(name, "")

    def add(self, name: str, text: str) -> None:
        """Append one line. If the disk is full, the run goes on without its logs."""
        self._append(name, f"{text}\n")

    def _append(self, name: str, text: str) -> None:
        if not self._is_kept:
            return
        try:
            with (self._folder / f"{name}.log").open("a") as file:
                file.write(text)
        except OSError as error:
            self._is_kept = False
            logger.warning("%s is no longer written: %s", self._folder, error.strerror)


class SavedFiles:
    """Writes files of other hosts below `folder`: the working directory of the run's script, or that of recordings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, host: str, piece: SavedPiece) -> str:
        """Write one piece; the last one completes the file. Returns why that is not possible, "" if it is."""
        path = PurePosixPath(piece.path)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in piece.path:
            return f"host {host} returned a file with the path {piece.path[:200]!r}, which is refused"
        target = self._folder / path
        temporary = target.with_name(f".{target.name}.{host}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(self._folder.resolve()):
                return f"host {host} returned {piece.path}, which a link leads out of {self._folder}: it is refused"
            if piece.offset and not (temporary.exists() and temporary.stat().st_size >= piece.offset):
                # The pieces before this one were written by an earlier launcher, which has completed the file.
                return "" if target.exists() else f"host {host} returned only a part of {piece.path}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if piece.offset == 0 else 0)
            with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
                file.seek(piece.offset)
                file.write(piece.data)
                if piece.last:
                    file.flush()
                    os.fsync(file.fileno())
            if piece.last:
                temporary.replace(target)
        except OSError as error:
            return f"{target}, which host {host} returned, cannot be written: {error.strerror}"
        return ""
