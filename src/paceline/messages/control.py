"""The engine and observers: looking at a job, changing its size, and ending it."""

from __future__ import annotations

from paceline.messages.base import Message


class Exited(Message, frozen=True):
    """The engine saw the process end that was start number `start` of `name`."""

    req: int
    name: str
    start: int
    code: int


class StatusRequest(Message, frozen=True):
    """Anyone with the token may look."""

    req: int


class StatusReply(Message, frozen=True):
    """A JSON document."""

    req: int
    json: bytes


class Scale(Message, frozen=True):
    """Somebody wants the job to have that many workers and servers (0: as before).

    The engine sees it in the status and acts.
    """

    req: int
    workers: int
    servers: int = 0


class Finish(Message, frozen=True):
    """Every worker has ended: close the books and say how it went."""

    req: int


class Summary(Message, frozen=True):
    """The run's summary, a JSON document."""

    req: int
    json: bytes


class Shutdown(Message, frozen=True):
    """The engine wants the role to end, saying why."""

    req: int
    reason: str
