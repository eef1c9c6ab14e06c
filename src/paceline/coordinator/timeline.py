"""Records when commits, failovers, checkpoints and rewinds of a run happened, by the caller's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field

_LATELY = 25  # the number of recent commits from which `rate` is computed
_APART_S = 0.2  # seconds between two of these commits, at least: commits between them are not recorded
_CHANGES = 8  # the number of recent changes that are kept
_QUIET_S = 1.0  # seconds since the last commit that do not lower the rate yet


@dataclass(frozen=True, slots=True)
class Change:
    """A change of placement or a rewind, and its cause. `number` counts them from 1."""

    number: int
    kind: str
    why: str
    at: float


@dataclass(slots=True)
class Timeline:
    """The times of a run's events.

    `last` is the time of the last commit under this coordinator. `began` is the time from which this coordinator
    counts: its first commit or, if an earlier coordinator made commits, the time up to which that one counted.
    `earlier_s` are the seconds before `began`. `reached` is the highest version that the job ever had: below it, the
    job computes steps again after a rewind. `failover_s` is the longest time between two commits with a failover
    between them. `asked` is when
    `quiet_s` was first called. `changes` are the latest changes of placement and rewinds.
    """

    earlier_s: float = 0.0
    reached: int = -1
    began: float | None = None
    last: float | None = None
    checkpoint_at: float | None = None
    failover_s: float = 0.0
    over_since: float | None = None
    asked: float | None = None
    lately: list[tuple[float, float]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The seconds from the first commit to the last, with the time that the loss of a coordinator cost."""
        return self.earlier_s + (0.0 if self.began is None or self.last is None else self.last - self.began)

    def committed(self, version: int, samples: float, now: float) -> None:
        """Record that the job has committed `version`, and `samples` samples in all."""
        self.reached = max(self.reached, version)
        self.began = now if self.began is None else self.began
        if self.over_since is not None:
            self.failover_s, self.over_since = max(self.failover_s, now - self.over_since), None
        self.last = now
        if self.lately and samples < self.lately[-1][1]:
            self.lately.clear()  # the job has been rewound, so a rate across the rewind would be wrong
        if not self.lately or now - self.lately[-1][0] >= _APART_S:
            self.lately.append((now, samples))
            del self.lately[:-_LATELY]

    def quiet_s(self, now: float) -> float:
        """Seconds since the last commit under this coordinator, or since it was first asked."""
        if self.asked is None:
            self.asked = now
        return now - (self.asked if self.last is None else self.last)

    def failed_over(self, now: float) -> None:
        """Record that a backup has become a primary; the failover lasts from the last commit to the next."""
        if self.over_since is None:
            self.over_since = now if self.last is None else self.last

    def saved(self, now: float) -> None:
        """Record that a checkpoint is complete."""
        self.checkpoint_at = now

    def changed(self, kind: str, why: str, now: float) -> None:
        """Record that the placement has changed or that the job was rewound, and why."""
        number = self.changes[-1].number + 1 if self.changes else 1
        self.changes.append(Change(number, kind, why, now))
        del self.changes[:-_CHANGES]

    def rate(self, now: float) -> float | None:
        """Samples per second over the recent commits, None if fewer than two. A pause after the last one lowers it."""
        if len(self.lately) < 2:
            return None
        (first, low), (last, high) = self.lately[0], self.lately[-1]
        return (high - low) / (max(last, now - _QUIET_S) - first)
