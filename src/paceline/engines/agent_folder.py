"""The folder of an agent: removed at its end, or by a later agent if the agent was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "paceline-agent-"
_LOCK = "lock"


class AgentFolder:
    """A new folder in `parent`. While it is open, no other agent removes it."""

    def __init__(self, parent: Path, name: str) -> None:
        parent = parent.absolute()  # roles have directories of their own
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove the folders of agents that were killed: they hold the user's files and a token."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:
            continue  # another agent makes or removes it now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its agent lives
        finally:
            os.close(lock)
