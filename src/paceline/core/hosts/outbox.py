"""Numbered reports of an agent, kept until the supervisor has acknowledged them: only a reply proves delivery."""

from __future__ import annotations

from collections import deque

from paceline.messages.hosts import Report, Reports

MAX_WAITING = 4000
"""Reports: an agent with more of them unacknowledged reads no more output of its roles."""

_BATCH = 200
_BATCH_NBYTES = 256 << 10


class Outbox:
    """Reports in order. A new session begins again behind the last report that the supervisor has seen."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest report; the first report has the number 1."""
        self._waiting: deque[Report] = deque()
        self._sent = 0

    @property
    def is_full(self) -> bool:
        """Whether so many reports wait that the agent must not add more, except the ends of roles."""
        return len(self._waiting) >= MAX_WAITING

    @property
    def is_empty(self) -> bool:
        """Whether the supervisor has acknowledged every report."""
        return not self._waiting

    def add(self, report: Report) -> None:
        """Add a report."""
        self.last += 1
        self._waiting.append(report)

    def acknowledge(self, seen: int) -> None:
        """Forget the reports up to number `seen`: the supervisor has handled them."""
        while self._waiting and self._first <= seen:
            self._waiting.popleft()
        self._sent = max(self._sent, seen)

    def rewind(self, seen: int) -> None:
        """Send every report behind number `seen` again: a new session begins."""
        self.acknowledge(seen)
        self._sent = self._first - 1

    def unsent(self) -> list[Reports]:
        """The reports that were not sent in this session, as messages. They count as sent from now on."""
        messages: list[Reports] = []
        items: list[Report] = []
        nbytes, first = 0, self._sent + 1
        for report in list(self._waiting)[self._sent - self._first + 1 :]:
            items.append(report)
            nbytes += report.nbytes
            if len(items) >= _BATCH or nbytes >= _BATCH_NBYTES:
                messages.append(Reports(first, tuple(items)))
                first, items, nbytes = first + len(items), [], 0
        if items:
            messages.append(Reports(first, tuple(items)))
        self._sent = self.last
        return messages

    @property
    def _first(self) -> int:
        """The number of the oldest report that waits."""
        return self.last - len(self._waiting) + 1
