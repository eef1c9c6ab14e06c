"""An engine's line to the coordinator, which may be away for a while: nothing here waits unless asked to."""

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


class Liaison:
    """Reports ends, asks for the status a few times a second and, once `finishing`, for the summary.

    One request is under way at a time. Reports go first and are repeated until the coordinator, this one or the next,
    has heard them. `heard` is true once there was a status; until then it is `Status()`.
    """

    def __init__(self, find: Find, token: bytes) -> None:
        self.status = Status()
        self.heard = False
        self.summary: RunSummary | None = None
        self.finishing = False
        self._observer = Observer(find, token)
        self._reports: deque[_Make] = deque()
        self._asked: _Make | None = None
        self._next_status = 0.0

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._asked is not None

    @property
    def settled(self) -> bool:
        """Whether the coordinator has heard every report."""
        return not self._reports

    def report(self, name: str, pid: int, code: int) -> None:
        """A process has ended."""
        self._reports.append(lambda req: Exited(req, name, pid, code))

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
                reply = None  # a report that this coordinator does not want is not repeated
                self._answered()
            if reply is None:
                return False
            self._answered()
            if isinstance(reply, StatusReply):
                self.status, self.heard = decode_status(reply), True
                return True
            if isinstance(reply, Summary):
                self.summary = decode_summary(reply)

    def look(self, timeout_s: float) -> bool:
        """Ask for the status of now and wait for it; False if none came."""
        if self._asked is StatusRequest:
            self._asked = None
        self._next_status = 0.0
        return self.pump(timeout_s)

    def close(self) -> None:
        """Hang up."""
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
        elif self.finishing and self.summary is None and self._asked is None:
            self._ask(Finish)

    def _ask(self, make: _Make) -> None:
        self._asked = make
        self._observer.post(make)
