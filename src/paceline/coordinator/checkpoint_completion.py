"""Completes checkpoints, and removes old ones, while the coordinator goes on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from paceline.checkpoint.manifest import (
    FORMAT,
    MARKER,
    Manifest,
    drop_checkpoint,
    list_checkpoints,
    parse_folder,
    write_manifest,
)
from paceline.checkpoint.storage import Storage
from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import sync_log
from paceline.core.effects import Complete
from paceline.errors import CheckpointError, DeposedError
from paceline.messages import Checkpoint

logger = logging.getLogger(__name__)


def complete_checkpoints(storage: Storage, resume: str | None = None) -> list[Checkpoint]:
    """The checkpoints that are complete, oldest first; their tensors are not looked at.

    The others are named in a warning, except those above the folder `resume`: the choice of it named them already.
    """
    found = []
    try:
        for listed in list_checkpoints(storage, verify=False):
            if listed.manifest is not None:
                found.append(Checkpoint(listed.folder, listed.manifest.position))
            elif resume is None or listed.folder <= resume:
                logger.warning("checkpoint %s is passed over: %s", listed.folder, listed.problem)
    except OSError as error:
        logger.warning("cannot list the checkpoints in %s: %s", storage.url, error)
    return found


class CheckpointCompletion:
    """Does one task at a time, in a thread of its own. The caller asks for results with `poll`; nothing blocks.

    `log` is the log's file, None where it is in memory; what an older `generation` asks for is not done.
    """

    def __init__(self, storage: Storage | None, log: Path | None, generation: int) -> None:
        self._storage = storage
        self._log = log
        self._generation = generation
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._completed: deque[tuple[str, str]] = deque()

    def complete(self, complete: Complete) -> None:
        """Make a checkpoint count, then remove what need not be kept."""
        self._waiting.append(lambda: self._completed.append((complete.checkpoint.folder, self._complete(complete))))
        self._start()

    def sweep(self, folder: str) -> None:
        """The checkpoint in `folder` was given up: remove it, and any other that was never completed."""
        self._waiting.append(lambda: self._sweep(folder, also=True))
        self._start()

    def poll(self) -> tuple[str, str] | None:
        """Take one result: the folder of a checkpoint, and "" if it is complete, or else the problem."""
        self._start()
        return self._completed.popleft() if self._completed else None

    def close(self, timeout_s: float = 5.0) -> None:
        """Do nothing more; what is under way is waited for at most `timeout_s`."""
        self._waiting.clear()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._waiting.popleft(), name="paceline-keep", daemon=True)
            self._thread.start()

    def _complete(self, complete: Complete) -> str:
        """What went wrong; "" if nothing did."""
        folder, storage = complete.checkpoint.folder, self._storage
        if storage is None:
            return "this coordinator was started without a place for checkpoints"
        try:
            if self._log is not None:
                sync_log(self._log)
                self._check_generation(self._log)
            there = set(storage.files(folder))
            for file in complete.files:
                if file.name not in there:
                    raise CheckpointError(folder, f"{file.name} is missing")
            manifest = Manifest(FORMAT, complete.model, complete.checkpoint.position, complete.files, complete.chains)
            write_manifest(storage, folder, manifest)
        except Exception as error:  # what object stores raise is not of one family, and the job must go on
            logger.warning("checkpoint %s is not complete", folder, exc_info=True)
            if not isinstance(error, DeposedError):
                self._sweep(folder, also=True)
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            return f"cannot complete {folder} in {storage.url}: {why}"
        for old in complete.drop:
            self._drop(old)
        self._sweep(folder, also=False)
        return ""

    def _check_generation(self, log: Path) -> None:
        with LogReader(log) as reader:
            durable = int(reader.get("generation") or 0)
        if durable != self._generation:
            raise DeposedError(self._generation, durable)

    def _sweep(self, folder: str, *, also: bool) -> None:
        """Remove checkpoints older than `folder` (`also`: itself) that were never completed, and never will be."""
        storage, here = self._storage, parse_folder(folder)
        if storage is None or here is None:
            return
        try:
            for name in storage.folders():
                at = parse_folder(name)
                if at is not None and (at < here or (also and at == here)) and MARKER not in storage.files(name):
                    self._drop(name)
        except Exception:
            logger.warning("cannot look for incomplete checkpoints in %s", storage.url, exc_info=True)

    def _drop(self, folder: str) -> None:
        assert self._storage is not None
        try:
            drop_checkpoint(self._storage, folder)
        except Exception:
            logger.warning("cannot remove checkpoint %s", folder, exc_info=True)
