"""Tries an operation on a file again after an error that may pass: a time-out, a lost connection, a busy server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from paceline.errors import DataUnreachableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

TRIES = 7
_FIRST_S, _LONGEST_S = 0.05, 5.0
_PASSING = (408, 425, 429, 500, 502, 503, 504, 509)
"""The answers of a web server that may be others at the next try."""


def with_retries(what: str, operation: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
    """Call `operation`, up to `TRIES` times with growing pauses, until it succeeds.

    Raises:
        DataUnreachableError: it failed for a reason that does not pass, or each time; the message names `what`.
    """
    pause = _FIRST_S
    for left in reversed(range(TRIES)):
        try:
            return operation()
        except Exception as error:
            remedy = _remedy(error)
            if remedy is not None:
                raise DataUnreachableError(f"{what}: {_text(error)}; {remedy}") from None
            if not may_pass(error):
                raise
            if not left:
                raise DataUnreachableError(
                    f"{what} cannot be read: {_text(error)}, after {TRIES} tries. Nothing was skipped: when the "
                    "storage answers again, `paceline run --resume RUN` goes on"
                ) from None
            logger.info("%s: %s; next try in %.2f s", what, _text(error), pause)
        sleep(pause)
        pause = min(_LONGEST_S, 2 * pause)
    raise AssertionError("unreachable")


def status_of(error: BaseException) -> int:
    """The status of a web server's answer that `error` carries, else 0."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return found if isinstance(found, int) else 0
    cause = error.__cause__
    return status_of(cause) if cause is not None else 0


def may_pass(error: BaseException) -> bool:
    """Whether another try may succeed."""
    if status := status_of(error):
        return status in _PASSING
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    network = {"ClientError", "ClientOSError", "ServerDisconnectedError", "ClientPayloadError", "BotoCoreError"}
    return isinstance(error, OSError | TimeoutError | EOFError) or bool(names & (network | {"FSTimeoutError"}))


def _remedy(error: BaseException) -> str | None:
    """What to do about an error that no other try will change; None for any other error."""
    status = status_of(error)
    if status in (401, 403) or isinstance(error, PermissionError):
        return (
            "access was refused. Give credentials by storage_options= or by the environment of the workers, and check "
            "the rights on this address"
        )
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return "there is no such file: check the address, or that every host sees it"
    return None


def _text(error: BaseException) -> str:
    """One line about `error` without the address, which may contain a key."""
    if status := status_of(error):
        return f"the server answered {status}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    kind = type(error).__name__
    text = str(error).splitlines()[0] if str(error) else ""
    return kind if not text or "://" in text else f"{kind}: {text[:200]}"
