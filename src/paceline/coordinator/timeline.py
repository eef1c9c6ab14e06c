"""When things happened in a run, by the caller's monotonic clock: commits, failovers, checkpoints, rewinds."""

from __future__ import annotations

from dataclasses import dataclass, field

_LATELY = 25  # notes, each at least `_APART_S` after the one before it
_APART_S = 0.2
_CHANGES = 8
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of placement or a rewind, and its cause. `number` counts them from 1."""

    number: int
    kind: str
    why: str
    at: float


@dataclass(slots=True)
class Timeline:
    """`began` and `last` are the first and last commit under this coordinator; `earlier_s` was spent before it.

    `reached` is the highest version that the job ever had: below it, the job computes steps again. `failover_s` is the
    longest time between two commits with a failover between them. `changes` are the latest ones.
    """

    earlier_s: float = 0.0
    reached: int = -1
    began: float | None = None
    last: float | None = None
    checkpoint_at: float | None = None
    failover_s: float = 0.0
    over_since: float | None = None
    lately: list[tuple[float, float]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first commit to the last, without the time between two coordinators."""
        return self.earlier_s + (0.0 if self.began is None or self.last is None else self.last - self.began)

    def committed(self, version: int, samples: float, now: float) -> None:
        """The job has committed `version`, and so many samples."""
        self.reached = max(self.reached, version)
        self.began = now if self.began is None else self.began
        if self.over_since is not None:
            self.failover_s, self.over_since = max(self.failover_s, now - self.over_since), None
        self.last = now
        if self.lately and samples < self.lately[-1][1]:
            self.lately.clear()  # the job was rewound
        if not self.lately or now - self.lately[-1][0] >= _APART_S:
            self.lately.append((now, samples))
            del self.lately[:-_LATELY]

    def failed_over(self, now: float) -> None:
        """A backup has become a primary."""
        if self.over_since is None:
            self.over_since = now if self.last is None else self.last

    def saved(self, now: float) -> None:
        """A checkpoint is complete."""
        self.checkpoint_at = now

    def changed(self, kind: str, why: str, now: float) -> None:
        """The placement has changed, or the job was rewound."""
        number = self.changes[-1].number + 1 if self.changes else 1
        self.changes.append(Change(number, kind, why, now))
        del self.changes[:-_CHANGES]

    def rate(self, now: float) -> float | None:
        """Samples a second of the last few seconds, None with fewer than two commits. Time without a commit counts."""
        if len(self.lately) < 2:
            return None
        (first, low), (last, high) = self.lately[0], self.lately[-1]
        return (high - low) / (max(last, now - _QUIET_S) - first)
