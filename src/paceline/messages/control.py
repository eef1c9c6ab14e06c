"""Messages from the launcher and observers to the coordinator: read the status of a job, change its size, end it."""

from __future__ import annotations

from paceline.messages.base import Message
from paceline.types import ModelSpec, Placement


class Exited(Message, frozen=True):
    """Reports that start number `start` of the process called `name` has ended with exit code `code`."""

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
    """Sets how many workers and servers (0: no change) and samplers (-1: no change) the job shall have.

    The launcher reads these numbers in the status and starts or ends processes.
    """

    req: int
    workers: int
    servers: int = 0
    samplers: int = -1


class HostLost(Message, frozen=True):
    """Reports that every process of the host `host` is gone, for this `reason`. The answer is `Ok`.

    `roles` has the (name, start) of the processes that ran there: a coordinator that was restarted does not know the
    host of a server that has not registered again.
    """

    req: int
    host: str
    reason: str
    roles: tuple[tuple[str, int], ...] = ()


class Drain(Message, frozen=True):
    """Asks that the host `host` be emptied: its servers give up their blocks, its workers get no more leases.

    With `undo` the host may be used again. The answer is `Ok`, or `Refused` if no other host carries roles. With
    `others` the launcher says that it has another host, perhaps one without roles. The status names the draining hosts,
    and those that are empty.
    """

    req: int
    host: str
    undo: bool = False
    others: bool = False


class SaveNow(Message, frozen=True):
    """Asks the coordinator to begin a checkpoint of the last committed version, unless there is one or one is made.

    The answer is `Ok`, at once; the status shows the checkpoint that is under way and the newest complete one.
    """

    req: int


class Finish(Message, frozen=True):
    """Asks the coordinator to complete the last checkpoint and answer with the summary: every worker has ended."""

    req: int


class Summary(Message, frozen=True):
    """The summary of the run as JSON: see `messages.status`."""

    req: int
    json: bytes


class Shutdown(Message, frozen=True):
    """Tells the role to end; `reason` says why."""

    req: int
    reason: str


class Follow(Message, frozen=True):
    """A reader asks where the job stands. Any process with the token may send it; the coordinator keeps nothing of it.

    With `knows_model` the answer leaves the model out.
    """

    req: int
    knows_model: bool = False


class Following(Message, frozen=True):
    """The answer to `Follow`: the newest committed version, how long ago it was committed, and where its blocks are.

    `model` and `placement` are None before the job has them, `version` is -1 before the first commit, and `ago_s` is
    negative if this coordinator has not seen a commit.
    """

    req: int
    generation: int
    incarnation: int
    version: int
    ago_s: float
    placement: Placement | None = None
    model: ModelSpec | None = None
