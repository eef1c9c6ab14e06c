"""Brings the user's files to the hosts of a run: collected at its start, and sent to each host that lacks them."""

from __future__ import annotations

from paceline.core.files.manifest import FileManifest, decode
from paceline.core.files.sender import FileSender
from paceline.engines.bundle.collect import fill
from paceline.engines.bundle.packed import MANIFEST
from paceline.engines.bundle.store import Store
from paceline.engines.place import plan_files
from paceline.engines.plan import RunPlan
from paceline.errors import FilesError, UsageError
from paceline.messages.base import Message
from paceline.runtime.rundir import FILES, RunDir


class FileDelivery:
    """The files of one run, and which hosts have them. Every start of a role uses the files of the run's start."""

    def __init__(self, plan: RunPlan, run: RunDir) -> None:
        """Collect the files of a new run; a run that goes on keeps those of its start.

        Raises:
            UsageError: the files cannot be read, or are too large; the message says what to do.
        """
        kept = run.path / FILES / MANIFEST
        self._store = Store(run.path / FILES, plan.files_limit << 20)
        try:
            if plan.adopt and kept.exists():
                self.manifest: FileManifest = decode(kept.read_bytes(), plan.files_limit << 20)
            else:
                self.manifest = plan_files(plan)
                fill(self._store, self.manifest, plan.code_root)
                kept.write_bytes(self.manifest.encode())
        except FilesError as error:
            raise UsageError(str(error)) from None
        self._senders: dict[str, FileSender] = {}
        self._req = 0

    def begin(self, host: str) -> list[Message]:
        """Offer the files to a host that has enlisted; returns the messages to send to it."""
        self._req += 1
        self._senders[host] = FileSender(self.manifest, self._store, self._req)
        return self._senders[host].start()

    def handle(self, host: str, message: Message) -> list[Message]:
        """Take an answer of a host; returns the messages to send to it."""
        sender = self._senders.get(host)
        if sender is None:
            return []
        try:
            return sender.handle(message)
        except FilesError as error:
            sender.fail(str(error))
            return []

    def has(self, host: str) -> bool:
        """Whether a host has all files."""
        sender = self._senders.get(host)
        return sender is not None and sender.done

    def problem(self, host: str) -> str:
        """Why a host will never have the files, "" if it may. Each problem is told once."""
        sender = self._senders.get(host)
        if sender is None or not sender.problem:
            return ""
        del self._senders[host]
        return sender.problem

    def forget(self, host: str) -> None:
        """Forget a host that does not take part any more."""
        self._senders.pop(host, None)
