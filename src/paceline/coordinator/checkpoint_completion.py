"""Completes checkpoints and removes old ones in a thread, so that the coordinator does not wait."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

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
from paceline.checkpoint.terms import Term, check_term
from paceline.coordinator.log_parts import FOLDER, TIP, Reached, removable, retire, write_new_rows
from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import sync_log
from paceline.core.effects import Complete
from paceline.errors import CheckpointError, DeposedError
from paceline.messages import Checkpoint

logger = logging.getLogger(__name__)


def complete_checkpoints(storage: Storage, resume: str | None = None) -> list[Checkpoint]:
    """The complete checkpoints in `storage`, oldest first; their tensors are not read.

    A warning names each checkpoint that cannot be used, except those newer than the folder `resume`: the command that
    chose `resume` has named them already.
    """
    found = []
    try:
        for listed in list_checkpoints(storage, verify=False):
            if listed.manifest is not None:
                found.append(Checkpoint(listed.folder, listed.manifest.position))
            elif resume is None or listed.folder <= resume:
                logger.warning("checkpoint %s is ignored because it cannot be used: %s", listed.folder, listed.problem)
    except OSError as error:
        logger.warning("cannot list the checkpoints in %s: %s", storage.url, error)
    return found


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A place of checkpoints outside of the run directory: the term by which this run holds it, and the run's plan."""

    term: Term
    plan: Callable[[], Mapping[str, Any]]


class CheckpointCompletion:
    """Completes and removes checkpoints, one task at a time, in a thread. `poll` returns the results without waiting.

    `log` is the file of the log, None if the log is in memory. No checkpoint is completed once a coordinator of a newer
    generation than `generation` has opened the log. At a held `place`, a checkpoint also has the plan and the rows of
    the log, of which the storage has those up to `reached`. Nothing is completed or removed there once another run has
    taken a higher term (rule 16): `deposed` is the error then, with which this run must end.
    """

    def __init__(
        self,
        storage: Storage | None,
        log: Path | None,
        generation: int,
        place: HeldPlace | None = None,
        reached: Reached | None = None,
    ) -> None:
        self.deposed: DeposedError | None = None
        self.reached = reached or Reached()
        self._storage = storage
        self._log = log
        self._generation = generation
        self._place = place
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._completed: deque[tuple[str, str]] = deque()

    def complete(self, complete: Complete) -> None:
        """Write the manifest of a checkpoint, which completes it; then remove the checkpoints that need not be kept."""
        self._waiting.append(lambda: self._completed.append((complete.checkpoint.folder, self._complete(complete))))
        self._start()

    def drop(self, folders: Collection[str]) -> None:
        """Remove complete checkpoints."""
        for folder in folders:
            self._waiting.append(functools.partial(self._drop, folder))
        self._start()

    def sweep(self, folder: str) -> None:
        """Remove the checkpoint in `folder`, which was given up, and all older checkpoints that are incomplete."""
        self._waiting.append(lambda: self._sweep(folder, also=True))
        self._start()

    def poll(self) -> tuple[str, str] | None:
        """Take one result, if any: the folder of a checkpoint, and its problem ("" if the checkpoint is complete)."""
        self._start()
        return self._completed.popleft() if self._completed else None

    def close(self, timeout_s: float = 5.0) -> None:
        """Start no further task, and wait at most `timeout_s` for the running task."""
        self._waiting.clear()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._waiting.popleft(), name="paceline-keep", daemon=True)
            self._thread.start()

    def _complete(self, complete: Complete) -> str:
        """Complete the checkpoint; return the problem, or "" if it is complete."""
        folder, storage = complete.checkpoint.folder, self._storage
        if storage is None:
            return "this coordinator was started without a place for checkpoints"
        try:
            self._check_term(storage)
            if self._log is not None:
                sync_log(self._log)
                self._check_generation(self._log)
            there = set(storage.files(folder))
            for file in complete.files:
                if file.name not in there:
                    raise CheckpointError(folder, f"{file.name} is missing")
            manifest = Manifest(FORMAT, complete.model, complete.checkpoint.position, complete.files, complete.chains)
            if self._place is not None and self._log is not None:
                after = write_new_rows(storage, self._log, self.reached, self._place.term.number)
                self.reached = retire(self.reached, after, folder)
                plan = dict(self._place.plan())
                manifest = msgspec.structs.replace(manifest, plan=plan, log=self.reached.tip)
            self._check_term(storage)
            write_manifest(storage, folder, manifest)
        except Exception as error:  # object stores raise unrelated exceptions, and the job must continue
            logger.warning("cannot complete checkpoint %s", folder, exc_info=True)
            if isinstance(error, DeposedError):
                self.deposed = error if error.place else None
            else:
                self._sweep(folder, also=True)
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            return f"cannot complete {folder} in {storage.url}: {why}"
        for old in complete.drop:
            self._drop(old)
        self._sweep(folder, also=False)
        self._remove_retired(storage)
        return ""

    def _check_term(self, storage: Storage) -> None:
        if self._place is not None:
            check_term(storage, self._place.term.number, self._place.term.key)

    def _check_generation(self, log: Path) -> None:
        with LogReader(log) as reader:
            durable = int(reader.get("generation") or 0)
        if durable != self._generation:
            raise DeposedError(self._generation, durable)

    def _sweep(self, folder: str, *, also: bool) -> None:
        """Remove incomplete checkpoints older than `folder`, and with `also` the incomplete checkpoint in `folder`."""
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

    def _remove_retired(self, storage: Storage) -> None:
        """Remove files of the log on which no checkpoint stands any more.

        Only those that the log calls retired: if this coordinator dies now, the next one goes on from what the log
        says, and must find the files of that chain.
        """
        if self._place is None or self._log is None:
            return
        try:
            with LogReader(self._log) as reader:
                durable = msgspec.json.decode(reader.get(TIP) or "{}", type=Reached)
            for name in removable(durable, storage.folders()):
                self._check_term(storage)
                storage.delete(f"{FOLDER}/{name}")
                left = tuple(file for file in self.reached.retired if file.name != name)
                self.reached = msgspec.structs.replace(self.reached, retired=left)
        except DeposedError as error:
            self.deposed = error
        except Exception:
            logger.warning("cannot remove old files of the log in %s", storage.url, exc_info=True)

    def _drop(self, folder: str) -> None:
        assert self._storage is not None
        try:
            self._check_term(self._storage)
            drop_checkpoint(self._storage, folder)
        except DeposedError as error:
            self.deposed = error
        except Exception:
            logger.warning("cannot remove checkpoint %s", folder, exc_info=True)
