"""The calls of `job.save`: one worker writes each file once, and says so if the file of an earlier save is gone."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from paceline.messages import Claim, ClaimDone, Claimed, Ok, SavedModel, Warn
from paceline.worker.save_model import file_digest, refuse_suffix, save_model, with_suffix
from paceline.worker.session import Session


class Saves:
    """Counts the saves of this script. Workers run the same script: the n-th call of each is the same save.

    `on_saved`, if given, is told of each file that is written. The file is then moved elsewhere: it is not looked for.
    """

    def __init__(self, session: Session, on_saved: Callable[[Path], None] | None = None) -> None:
        self._session = session
        self._on_saved = on_saved
        self._count = 0
        self._began = time.time()

    def save(self, model: torch.nn.Module, path: Path, *, passed: bool = False) -> None:
        """Write `model` to `path`, unless another worker does it, or the job has done it before.

        With `passed`, this worker is behind the job: it never writes.

        Raises:
            SaveError: the file cannot be written.
            UsageError: `path` does not end in .safetensors. The file is written under another name.
        """
        self._count += 1
        key, file = f"save {self._count} {path}", with_suffix(path)
        claimed = self._session.ask(lambda req: Claim(req, key, passed), Claimed)
        if claimed.mine:
            saved = SavedModel(str(file), save_model(model, file), socket.gethostname())
            if self._on_saved is not None:
                self._on_saved(file)
            self._session.ask(lambda req: ClaimDone(req, key, saved), Ok)
        elif self._on_saved is None and claimed.saved is not None and claimed.saved.host == socket.gethostname():
            self._check(claimed.saved, file)
        refuse_suffix(path)

    def _check(self, saved: SavedModel, file: Path) -> None:
        """Warn the user if the file of a save that was done before is not as the job left it."""
        try:
            # A worker that runs beside this one may have just saved again, and not reported it yet.
            if file.stat().st_mtime >= self._began or file_digest(file) == saved.digest:
                return
            problem = "has other weights than this job saved there: another program has written it since"
        except FileNotFoundError:
            problem = "is missing"
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        text = (
            f"{file} {problem}. job.save({str(file)!r}) was done before this start of the script, at a step that is "
            "not computed again, so it is skipped. Put the file back if you need it, or start a new run"
        )
        self._session.ask(lambda req: Warn(req, f"save {file}", text), Ok)
