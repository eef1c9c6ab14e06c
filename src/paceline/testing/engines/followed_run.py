"""A ``paceline run`` on a cluster, followed from outside: its status, and the times without a commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.clients.observer import Observer
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir
from paceline.testing.host_cluster import Stuck
from paceline.testing.launch import Launched

_LOOK_S = 0.02


class FollowedRun:
    """Starts ``paceline run WORDS`` in `folder`. A thread asks for the status all the time; call `close` at the end."""

    def __init__(self, folder: Path, words: Sequence[object], env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.dir = RunDir(folder / "run")
        self.launched = Launched(["run", "--dir", self.dir.path, *words], folder / "run.txt", env)
        self._status: Status | None = None
        self._last_at = time.monotonic()
        self._pause_s = 0.0
        self._wish = threading.Event()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        observer = None
        while not self._ends.wait(_LOOK_S):
            try:
                observer = observer or Observer(self.dir.coordinator, self.dir.token())
                status = observer.status(timeout_s=0.5)
                if self._wish.is_set():
                    self._wish.clear()
                    observer.stop(-1, "the campaign is over", at_once=True, timeout_s=20.0)
            except (TransportError, UsageError):  # it has not begun, or its coordinator restarts
                continue
            finally:
                self._pause_s = max(self._pause_s, time.monotonic() - self._last_at)
            if self._status is None or status.version != self._status.version:
                self._last_at = time.monotonic()
            self._status = status
        if observer is not None:
            observer.close()

    def pause(self) -> float:
        """The longest time without a commit since the last call, in seconds."""
        found, self._pause_s = self._pause_s, 0.0
        return found

    def until(self, reached: Callable[[Status], bool], what: str, timeout_s: float = 120.0) -> Status:
        """Wait for a status for which `reached` holds.

        Raises:
            Stuck: none came within `timeout_s`, or the run has ended.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.launched.code is None:
            if self._status is not None and reached(self._status):
                return self._status
            time.sleep(_LOOK_S)
        text = self.launched.out.read_text()[-4000:]
        raise Stuck(f"waited up to {timeout_s:.0f} s for {what}; last status: {self._status}\n{text}")

    def stop(self, timeout_s: float = 120.0) -> int | None:
        """End the job at its last committed version; returns the exit code, None if it did not end in time."""
        self._wish.set()
        return self.launched.wait(timeout_s)

    def close(self) -> None:
        """End the run if it still goes on."""
        self._ends.set()
        self._thread.join()
        self.launched.end()
