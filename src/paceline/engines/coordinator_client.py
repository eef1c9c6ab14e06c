"""The launcher's connection to the coordinator. Calls do not wait while the coordinator restarts, except `look`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from paceline.clients.observer import Observer, decode_status, decode_summary
from paceline.clients.redial import Find
from paceline.errors import UsageError
from paceline.messages import (
    Drain,
    Exited,
    Finish,
    HostLost,
    Message,
    SaveNow,
    Scale,
    StatusReply,
    StatusRequest,
    Summary,
)
from paceline.messages.status import RunSummary, Status

STATUS_S = 0.25
_Make = Callable[[int], Message]


class CoordinatorClient:
    """Reports processes that ended, asks for the status a few times a second and, after `finish`, for the summary.

    It sends one request at a time, reports first. A report is repeated until a coordinator has answered it, this one
    or the one that replaces it. `status` is the newest status; it is `Status()` until `heard` is true.
    """

    def __init__(self, find: Find, token: bytes) -> None:
        self.status = Status()
        self.heard = False
        self._summary: RunSummary | None = None
        self._finishing = False
        self._observer = Observer(find, token)
        self._reports: deque[_Make] = deque()
        self._drains: dict[_Make, str] = {}
        self._refused: dict[str, str] = {}
        self._asked: _Make | None = None
        self._next_status = 0.0

    @property
    def finishing(self) -> bool:
        """Whether `finish` has asked for the summary."""
        return self._finishing

    def finish(self) -> RunSummary | None:
        """Ask for the summary. Returns None until the summary has come, and then returns it once."""
        self._finishing = True
        summary, self._summary = self._summary, None
        return summary

    def go_on(self) -> None:
        """Stop asking for the summary: the job continues."""
        self._finishing, self._summary = False, None

    @property
    def busy(self) -> bool:
        """Whether a request is waiting for its answer."""
        return self._asked is not None

    @property
    def settled(self) -> bool:
        """Whether the coordinator has answered every report."""
        return not self._reports

    def report(self, name: str, start: int, code: int) -> None:
        """Report that start number `start` of the process called `name` has ended with exit code `code`."""
        self._reports.append(lambda req: Exited(req, name, start, code))

    def host_lost(self, host: str, reason: str, roles: Iterable[tuple[str, int]] = ()) -> None:
        """Report that every process of the host `host` is gone, for this `reason`: the (name, start) in `roles`."""
        gone = tuple(roles)
        self._reports.append(lambda req: HostLost(req, host, reason, gone))

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Ask that `host` become empty, or with `undo` that it be used again. Another host can take its roles.

        `refused_drains` tells if the coordinator refuses it.
        """

        def make(req: int) -> Drain:
            return Drain(req, host, undo, others=True)

        self._reports.append(make)
        if not undo:
            self._drains[make] = host

    def refused_drains(self) -> dict[str, str]:
        """Why the coordinator has refused to drain a host, by host. Each refusal is returned once."""
        refused, self._refused = self._refused, {}
        return refused

    def scale(self, workers: int, servers: int = 0) -> None:
        """Report how many workers and servers the run shall have; 0 servers means: do not change them."""
        self._reports.append(lambda req: Scale(req, workers, servers))

    def save_now(self) -> None:
        """Ask for a checkpoint of the last committed version, unless there is one; the status shows its end."""
        self._reports.append(SaveNow)

    def pump(self, timeout_s: float = 0.0) -> bool:
        """Send the next request and read answers for up to `timeout_s`; True as soon as a new status has come."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._ask_next()
            try:
                reply = self._observer.poll(max(0.0, deadline - time.monotonic()))
            except UsageError as error:
                reply = None  # the coordinator refused the report: do not repeat it
                if self._asked in self._drains:
                    self._refused[self._drains[self._asked]] = str(error)
                self._answered()
            if reply is None:
                return False
            self._answered()
            if isinstance(reply, StatusReply):
                self.status, self.heard = decode_status(reply), True
                return True
            if isinstance(reply, Summary):
                self._summary = decode_summary(reply)

    def look(self, timeout_s: float) -> bool:
        """Ask for the status and wait up to `timeout_s` for the answer; False if none came."""
        if self._asked is StatusRequest:
            self._asked = None
        self._next_status = 0.0
        return self.pump(timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._observer.close()

    def _answered(self) -> None:
        if self._reports and self._asked is self._reports[0]:
            self._drains.pop(self._reports.popleft(), None)
        self._asked = None

    def _ask_next(self) -> None:
        if self._asked is not None and self._asked is not Finish:
            return  # wait for this answer, which comes soon; a summary takes long, so others may replace `Finish`
        now = time.monotonic()
        if self._reports:
            self._ask(self._reports[0])
        elif now >= self._next_status:
            self._next_status = now + STATUS_S
            self._ask(StatusRequest)
        elif self._finishing and self._summary is None and self._asked is None:
            self._ask(Finish)

    def _ask(self, make: _Make) -> None:
        self._asked = make
        self._observer.post(make)
