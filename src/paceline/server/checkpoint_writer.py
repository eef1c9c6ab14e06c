"""Writes a frozen version into a checkpoint's folder while the server goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass

from paceline.blocks.chunk_update import Frozen
from paceline.checkpoint.shards import write_shards
from paceline.checkpoint.storage import Storage
from paceline.types import NodeId, SavedFile

logger = logging.getLogger(__name__)

_NICE = 15  # training goes first; hashing and writing, nearly all of the work, hold no lock of the interpreter


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the writing of a version ended: with `files`, or with a `problem`."""

    version: int
    files: tuple[SavedFile, ...]
    problem: str


class _GivenUpError(Exception):
    """Nobody wants the version any longer."""


class _Writing(threading.Thread):
    """One version on its way. `outcome` is set, and the version's memory free, before the thread ends."""

    def __init__(self, storage: Storage, folder: str, prefix: str, frozen: Frozen) -> None:
        super().__init__(name="paceline-save", daemon=True)
        self._storage, self._folder, self._prefix = storage, folder, prefix
        self.frozen = frozen
        self.given_up = False
        self.outcome: Outcome | None = None

    def run(self) -> None:
        """Write, whatever becomes of it."""
        with contextlib.suppress(AttributeError, OSError):  # Linux has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        files: tuple[SavedFile, ...] = ()
        problem = ""
        try:
            files = tuple(write_shards(self._storage, self._folder, self._prefix, self.frozen.blocks, self._check))
        except _GivenUpError:
            problem = "given up"
        except OSError as error:
            problem = self._describe(error.strerror or str(error))
        except Exception as error:  # what object stores raise is not of one family, and training must go on
            logger.exception("cannot write %s", self._folder)
            problem = self._describe(f"{type(error).__name__}: {error}")
        finally:
            self.outcome = Outcome(self.frozen.version, files, problem)
            self.frozen.done = True

    def _check(self) -> None:
        if self.given_up:
            raise _GivenUpError

    def _describe(self, why: str) -> str:
        return f"cannot write {self._folder} in {self._storage.url}: {why}"


class Saver:
    """Writes at most one version at a time, in a thread of its own. The caller looks in with `poll`; nothing blocks."""

    def __init__(self, storage: Storage | None, node: NodeId) -> None:
        """Files are named after `node`, which is unique per start: two starts of a server never write the same one."""
        self._storage = storage
        self._prefix = node.replace("/", "-")
        self._writing: _Writing | None = None
        self._next: tuple[str, Frozen] | None = None
        self._outcome: Outcome | None = None

    def begin(self, folder: str, frozen: Frozen) -> None:
        """Write `frozen` into `folder`. Whatever was to be written before is given up."""
        self.give_up()
        self._next = (folder, frozen)
        self._start()

    def give_up(self) -> None:
        """Nobody wants what is being written any longer; it will have no outcome."""
        self._outcome = None
        if self._next is not None:
            self._next[1].done = True
            self._next = None
        if self._writing is not None:
            self._writing.given_up = True

    def poll(self) -> Outcome | None:
        """How the writing ended, once."""
        writing = self._writing
        if writing is not None and not writing.is_alive():
            if not writing.given_up:
                self._outcome = writing.outcome
            self._writing = None
            self._start()
        outcome, self._outcome = self._outcome, None
        return outcome

    def _start(self) -> None:
        if self._next is None or self._writing is not None:
            return
        folder, frozen = self._next
        self._next = None
        if self._storage is None:
            frozen.done = True
            self._outcome = Outcome(frozen.version, (), "this server was started without a place for checkpoints")
            return
        self._writing = _Writing(self._storage, folder, self._prefix, frozen)
        self._writing.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Give up what is under way; a medium that hangs is waited for at most `timeout_s`."""
        self.give_up()
        if self._writing is not None:
            self._writing.join(timeout_s)
