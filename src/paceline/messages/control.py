"""From the engine and observers to the coordinator: read the status of a job, change its size, end it."""

from __future__ import annotations

from paceline.messages.base import Message


class Exited(Message, frozen=True):
    """The engine saw the process end that was start number `start` of `name`."""

    req: int
    name: str
    start: int
    code: int


class StatusRequest(Message, frozen=True):
    """Asks for the status. Any process with the token may send it."""

    req: int


class StatusReply(Message, frozen=True):
    """The status of the run as JSON: see `messages.status`."""

    req: int
    json: bytes


class Scale(Message, frozen=True):
    """Sets how many workers and servers the job shall have (0: as before).

    The engine reads it in the status and starts or ends processes.
    """

    req: int
    workers: int
    servers: int = 0


class Finish(Message, frozen=True):
    """Every worker has ended: complete the last checkpoint and answer with the summary."""

    req: int


class Summary(Message, frozen=True):
    """The summary of the run as JSON: see `messages.status`."""

    req: int
    json: bytes


class Shutdown(Message, frozen=True):
    """The engine tells the role to end; `reason` says why."""

    req: int
    reason: str
