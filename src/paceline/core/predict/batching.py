"""Dynamic batching: which waiting requests are computed together, and which are refused because the queue is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil

from paceline.errors import RequestError

_SMOOTH = 0.2  # weight of the newest batch in the mean time of a row
_FIRST_ROW_S = 0.01  # assumed until the first batch is done


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch has at most `max_rows` rows, and waits for more rows at most `delay_s` after its first request came.

    At most `max_queued_rows` rows wait. A request that has waited for `deadline_s` is answered with an error.
    """

    max_rows: int = 64
    delay_s: float = 0.0
    max_queued_rows: int = 1024
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: int
    rows: int
    kind: Hashable
    since: float


class Batcher:
    """The queue of one model. Changed only by its methods; times are those of any steady clock.

    A ticket is taken out exactly once: by `take`, by `expire` or by `withdraw`.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.queued_rows = 0
        self._waiting: deque[_Waiting] = deque()
        self._withdrawn: set[int] = set()
        self._row_s = _FIRST_ROW_S

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting) - len(self._withdrawn)

    def offer(self, ticket: int, rows: int, kind: Hashable, now: float) -> None:
        """Queue a request. Only requests of one `kind` are computed together.

        Raises:
            RequestError: status 429: the queue is full; `retry_after_s` is the time that its content will take.
        """
        if self.queued_rows and self.queued_rows + rows > self.limits.max_queued_rows:
            raise RequestError(
                429,
                f"{self.queued_rows} rows wait already, and {self.limits.max_queued_rows} may: try again later",
                retry_after_s=self.wait_s,
            )
        self.queued_rows += rows
        self._waiting.append(_Waiting(ticket, rows, kind, now))

    @property
    def wait_s(self) -> float:
        """How long the requests that wait now will take, by the last batches."""
        return self.queued_rows * self._row_s

    def withdraw(self, ticket: int) -> None:
        """Take out a request whose client is gone. Must be called only for a ticket that waits."""
        for waiting in self._waiting:
            if waiting.ticket == ticket and ticket not in self._withdrawn:
                self._withdrawn.add(ticket)
                self.queued_rows -= waiting.rows
                break
        self._drop_withdrawn()

    def take(self, now: float) -> tuple[int, ...]:
        """The tickets of the next batch, which is now computed; () if none is due.

        A batch is the longest run of requests of one kind at the head of the queue that has at most `max_rows` rows. A
        single request may have more rows.
        """
        self._drop_withdrawn()
        if not self._waiting:
            return ()
        head = self._waiting[0]
        rows, count = 0, 0
        for waiting in self._waiting:
            if waiting.ticket in self._withdrawn:
                count += 1
                continue
            if rows and (waiting.kind != head.kind or rows + waiting.rows > self.limits.max_rows):
                break
            rows += waiting.rows
            count += 1
        full = rows >= self.limits.max_rows or count < len(self._waiting)
        if not full and now < head.since + self.limits.delay_s:
            return ()
        taken = [self._waiting.popleft() for _ in range(count)]
        self.queued_rows -= rows
        tickets = tuple(w.ticket for w in taken if w.ticket not in self._withdrawn)
        self._withdrawn.difference_update(w.ticket for w in taken)
        return tickets

    def expire(self, now: float) -> tuple[int, ...]:
        """Take out the requests that have waited for longer than the deadline."""
        late: list[int] = []
        while self._waiting and now - self._waiting[0].since >= self.limits.deadline_s:
            waiting = self._waiting.popleft()
            if waiting.ticket in self._withdrawn:
                self._withdrawn.discard(waiting.ticket)
                continue
            self.queued_rows -= waiting.rows
            late.append(waiting.ticket)
        return tuple(late)

    def due(self) -> float | None:
        """When `take` may return a batch that is not full; None if nothing waits."""
        self._drop_withdrawn()
        return self._waiting[0].since + self.limits.delay_s if self._waiting else None

    def expected_s(self, rows: int) -> float:
        """How long a batch of `rows` rows will take, by the last batches."""
        return rows * self._row_s

    def computed(self, rows: int, seconds: float) -> None:
        """Note how long a batch of `rows` rows took."""
        self._row_s += _SMOOTH * (seconds / max(1, rows) - self._row_s)

    def _drop_withdrawn(self) -> None:
        while self._waiting and self._waiting[0].ticket in self._withdrawn:
            self._withdrawn.discard(self._waiting.popleft().ticket)


def retry_after(seconds: float) -> int:
    """The value of the header Retry-After: whole seconds, at least 1 and at most 60."""
    return min(60, max(1, ceil(seconds)))
