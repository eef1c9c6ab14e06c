"""Numbered reports of an agent, kept until the supervisor has acknowledged them: only a reply proves delivery."""

from __future__ import annotations

from collections import deque
from itertools import islice

from paceline.messages.hosts import Report, Reports

MAX_WAITING = 4000
MAX_WAITING_NBYTES = 32 << 20
"""Reports and their bytes: an agent with more of them unacknowledged reads no more output of its roles."""

_IN_FLIGHT = 400  # messages without an acknowledgement; a port ends a session for which 1000 messages wait
_BATCH = 200
_BATCH_NBYTES = 256 << 10


class Outbox:
    """Reports in order. A new session begins again behind the last report that the supervisor has seen."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest report; the first report has the number 1."""
        self._waiting: deque[Report] = deque()
        self._nbytes = 0
        self._sent = 0
        # The number of the last report in each message that was sent and is not acknowledged.
        self._in_flight: deque[int] = deque()

    @property
    def is_full(self) -> bool:
        """Whether so many reports wait that the agent must not add more, except the ends of roles."""
        return len(self._waiting) >= MAX_WAITING or self._nbytes >= MAX_WAITING_NBYTES

    @property
    def is_empty(self) -> bool:
        """Whether the supervisor has acknowledged every report."""
        return not self._waiting

    @property
    def acknowledged(self) -> int:
        """The number of the last report that the supervisor has acknowledged."""
        return self._first - 1

    def add(self, report: Report) -> None:
        """Add a report."""
        self.last += 1
        self._nbytes += report.nbytes
        self._waiting.append(report)

    def acknowledge(self, seen: int) -> None:
        """Forget the reports up to number `seen`: the supervisor has handled them."""
        while self._waiting and self._first <= seen:
            self._nbytes -= self._waiting.popleft().nbytes
        while self._in_flight and self._in_flight[0] <= seen:
            self._in_flight.popleft()
        self._sent = max(self._sent, self.acknowledged)

    def rewind(self, seen: int) -> None:
        """Send every report behind number `seen` again: a new session begins."""
        self.acknowledge(seen)
        self._sent = self.acknowledged
        self._in_flight.clear()

    def unsent(self) -> list[Reports]:
        """The reports that were not sent in this session, as messages. They count as sent from now on.

        If too many messages are on their way, the rest is returned after some of them are acknowledged.
        """
        messages: list[Reports] = []
        while self._sent < self.last and len(self._in_flight) < _IN_FLIGHT:
            items: list[Report] = []
            nbytes = 0
            for report in islice(self._waiting, self._sent - self.acknowledged, None):
                items.append(report)
                nbytes += report.nbytes
                if len(items) >= _BATCH or nbytes >= _BATCH_NBYTES:
                    break
            messages.append(Reports(self._sent + 1, tuple(items)))
            self._sent += len(items)
            self._in_flight.append(self._sent)
        return messages

    @property
    def _first(self) -> int:
        """The number of the oldest report that waits."""
        return self.last - len(self._waiting) + 1
