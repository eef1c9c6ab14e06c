"""An engine's connection to the coordinator, which may be away for a while: only `look` waits for an answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from paceline.clients.observer import Observer, decode_status, decode_summary
from paceline.clients.redial import Find
from paceline.errors import UsageError
from paceline.messages import Exited, Finish, Message, Scale, StatusReply, StatusRequest, Summary
from paceline.messages.status import RunSummary, Status

STATUS_S = 0.25
_Make = Callable[[int], Message]


class CoordinatorClient:
    """Reports ends, asks for the status a few times a second and, after `finish`, for the summary.

    One request is under way at a time. Reports go first and are repeated until a coordinator, this one or the next,
    has answered them. `status` is the newest one, `Status()` until the first was `heard`.
    """

    def __init__(self, find: Find, token: bytes) -> None:
        self.status = Status()
        self.heard = False
        self._summary: RunSummary | None = None
        self._finishing = False
        self._observer = Observer(find, token)
        self._reports: deque[_Make] = deque()
        self._asked: _Make | None = None
        self._next_status = 0.0

    @property
    def finishing(self) -> bool:
        """The summary was asked for."""
        return self._finishing

    def finish(self) -> RunSummary | None:
        """Ask for the summary; returns it once, when it is there."""
        self._finishing = True
        summary, self._summary = self._summary, None
        return summary

    def go_on(self) -> None:
        """The job goes on: the summary is not wanted any more."""
        self._finishing, self._summary = False, None

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._asked is not None

    @property
    def settled(self) -> bool:
        """Whether the coordinator has heard every report."""
        return not self._reports

    def report(self, name: str, start: int, code: int) -> None:
        """The process of start number `start` of `name` has ended."""
        self._reports.append(lambda req: Exited(req, name, start, code))

    def scale(self, workers: int, servers: int = 0) -> None:
        """The run has another number of workers now, or of servers (0: as before)."""
        self._reports.append(lambda req: Scale(req, workers, servers))

    def pump(self, timeout_s: float = 0.0) -> bool:
        """Do what can be done now, or within `timeout_s`; True when there is a new status."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._ask_next()
            try:
                reply = self._observer.poll(max(0.0, deadline - time.monotonic()))
            except UsageError:
                reply = None  # a report that this coordinator refuses is not repeated
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
        """Ask for the status of now and wait for it; False if none came."""
        if self._asked is StatusRequest:
            self._asked = None
        self._next_status = 0.0
        return self.pump(timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._observer.close()

    def _answered(self) -> None:
        if self._reports and self._asked is self._reports[0]:
            self._reports.popleft()
        self._asked = None

    def _ask_next(self) -> None:
        if self._asked is not None and self._asked is not Finish:
            return  # a summary takes its time, and is asked for again; everything else is answered at once
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
