"""The commits of a job as the coordinator remembers them: the version, the committed steps, what the summary counts."""

from __future__ import annotations

from collections import deque

from paceline.core.effects import History
from paceline.core.window import Watermark
from paceline.messages import Position
from paceline.types import INIT_STEP, Commit


class CommitLog:
    """The end of the one durable order of commits (rule 1).

    `commits` are the newest commits, which some server may have missed. `values` has the newest logged value of each
    name. `samples` and `skipped_slots` are of commits that no rewind has undone, the largest staleness and lag of all.
    """

    def __init__(self) -> None:
        self.version = -1
        self.watermark = Watermark()
        self.commits: deque[Commit] = deque()
        self.last: Commit | None = None
        self.values: dict[str, float] = {}
        self.samples = 0.0
        self.skipped_slots = 0
        self.max_staleness = 0
        self.max_lag = 0

    def reset(self, position: Position | None) -> None:
        """Return to `position`."""
        self.version = -1 if position is None else position.version
        self.watermark = Watermark() if position is None else Watermark(position.watermark, position.above)
        self.commits = deque()
        self.values = {} if position is None else dict(position.logs)
        self.samples = 0.0 if position is None else position.samples
        self.skipped_slots = 0 if position is None else position.empty

    def restore(self, history: History, position: Position | None) -> None:
        """Take over the log of the incarnation that began at `position`."""
        self.reset(position)
        self.version = history.version
        self.watermark = Watermark(history.watermark, history.above)
        self.commits = deque(history.tail)
        self.last = self.commits[-1] if self.commits else None
        self.values |= history.logs
        self.samples += history.samples
        self.skipped_slots += history.empty
        self.max_staleness, self.max_lag = history.max_staleness, history.max_lag

    def append(self, commit: Commit, values: dict[str, float]) -> None:
        """Append a commit; the slots of its step logged these `values`."""
        self.version = commit.version
        self.watermark.add(commit.step)
        self.commits.append(commit)
        self.last = commit
        if commit.step == INIT_STEP:
            return
        self.samples += commit.samples
        self.skipped_slots += commit.empty
        if commit.staleness > self.max_staleness:
            self.max_staleness = commit.staleness
        if commit.lag > self.max_lag:
            self.max_lag = commit.lag
        self.values.update(values)

    def trim(self, applied: int) -> None:
        """Forget the commits up to version `applied`: every holder of blocks has applied them."""
        while self.commits and self.commits[0].version <= applied:
            self.commits.popleft()

    def since(self, version: int) -> list[Commit]:
        """The remembered commits after `version`."""
        return [c for c in self.commits if c.version > version]
