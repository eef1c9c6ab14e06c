"""Writes a frozen version into a checkpoint's folder while training goes on."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from paceline.blocks.block_state import FrozenVersion
from paceline.checkpoint.shards import write_shards
from paceline.checkpoint.storage import Storage
from paceline.server.background import BackgroundThread, yield_to_training
from paceline.types import NodeId, SavedFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of writing a version: its `files`, or a `problem`."""

    version: int
    files: tuple[SavedFile, ...]
    problem: str


class _GivenUpError(Exception):
    """The version is no longer needed, so the thread stops writing."""


class _WriterThread(BackgroundThread):
    """Writes one version. Before it ends, it sets `outcome` and releases the version's memory."""

    def __init__(self, storage: Storage, folder: str, prefix: str, frozen: FrozenVersion) -> None:
        super().__init__("paceline-save")
        self._storage, self._folder, self._prefix = storage, folder, prefix
        self.frozen = frozen
        self.outcome: Outcome | None = None

    def run(self) -> None:
        """Write the version; no exception leaves the thread."""
        yield_to_training()
        files: tuple[SavedFile, ...] = ()
        problem = ""
        try:
            files = tuple(write_shards(self._storage, self._folder, self._prefix, self.frozen.blocks, self._check))
        except _GivenUpError:
            problem = "given up"
        except OSError as error:
            problem = self._describe(error.strerror or str(error))
        except Exception as error:  # object stores raise unrelated exceptions, and training must go on
            logger.exception("cannot write %s", self._folder)
            problem = self._describe(f"{type(error).__name__}: {error}")
        finally:
            self.outcome = Outcome(self.frozen.version, files, problem)
            self.frozen.release()

    def _check(self) -> None:
        if self._given_up:
            raise _GivenUpError

    def _describe(self, why: str) -> str:
        return f"cannot write {self._folder} in {self._storage.url}: {why}"


class CheckpointWriter:
    """Writes at most one version at a time, in another thread. `poll` returns the outcome; only `close` blocks."""

    def __init__(self, storage: Storage | None, node: NodeId) -> None:
        """File names begin with `node`. Each start has another `node`, so no two starts write the same file."""
        self._storage = storage
        self._prefix = node.replace("/", "-")
        self._thread: _WriterThread | None = None
        self._next: tuple[str, FrozenVersion] | None = None
        self._outcome: Outcome | None = None

    def begin(self, folder: str, frozen: FrozenVersion) -> None:
        """Write `frozen` into `folder`. If another version is being written, give that one up."""
        self.give_up()
        self._next = (folder, frozen)
        self._start()

    def give_up(self) -> None:
        """Give up the version that is being written; it will have no outcome."""
        self._outcome = None
        if self._next is not None:
            self._next[1].release()
            self._next = None
        if self._thread is not None:
            self._thread.give_up()

    def poll(self) -> Outcome | None:
        """The outcome of a version that is written, returned once; None until then."""
        thread = self._thread
        if thread is not None and not thread.is_alive():
            if not thread.given_up:
                self._outcome = thread.outcome
            self._thread = None
            self._start()
        outcome, self._outcome = self._outcome, None
        return outcome

    def _start(self) -> None:
        if self._next is None or self._thread is not None:
            return
        folder, frozen = self._next
        self._next = None
        if self._storage is None:
            frozen.release()
            self._outcome = Outcome(frozen.version, (), "this server was started without a place for checkpoints")
            return
        self._thread = _WriterThread(self._storage, folder, self._prefix, frozen)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Give up the version that is being written, and wait at most `timeout_s` for the thread to end."""
        self.give_up()
        if self._thread is not None:
            self._thread.join(timeout_s)
