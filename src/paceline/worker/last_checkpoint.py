"""The checkpoint of the last commit, which a worker asks for when its script has failed: the job ends after it."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.clients.observer import decode_status
from paceline.messages import Ok, SaveNow, StatusReply, StatusRequest
from paceline.messages.status import Status
from paceline.worker.session import Session

_PATIENCE_S = 5.0
_POLL_S = 0.05


def save_last(session: Session, sleep: Callable[[float], None] = time.sleep) -> None:
    """Ask for a checkpoint of the newest version, and wait until it is complete or given up, for some seconds at most.

    Returns at once if there is one, if nothing was committed, or if the job makes no checkpoints.
    """
    first, asked, until = _status(session), False, time.monotonic() + _PATIENCE_S
    status = first
    while time.monotonic() < until and not _has(status, first.version):
        if status.saving is None:
            if asked:
                return
            session.ask(SaveNow, Ok)
            asked = True
        else:
            sleep(_POLL_S)
        status = _status(session)


def _has(status: Status, version: int) -> bool:
    return version < 1 or (status.checkpoint is not None and status.checkpoint.version >= version)


def _status(session: Session) -> Status:
    return decode_status(session.ask(StatusRequest, StatusReply))
