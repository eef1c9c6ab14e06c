"""The versions that this server has: the one applied last, those kept readable, and the watermark of each."""

from __future__ import annotations

from collections.abc import Iterable, Set

from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.plan import KnownPlan
from paceline.core.window import Watermark, staleness
from paceline.messages import Assign
from paceline.types import INIT_STEP, Commit

_MAX_MARKS = 100_000  # watermarks to keep with an unlimited window: no worker still computes on older versions


class HeldVersions:
    """`applied` is the last version that this server applied, and `watermark` has the steps in that version.

    `follows_log` is False on a server that has no blocks and gets none: such a server applies no commits.
    """

    def __init__(self, plan: KnownPlan, own: BlockGroup, backups: Backups) -> None:
        self.applied = -1
        self.watermark = Watermark()
        self.follows_log = False
        self._plan = plan
        self._own = own
        self._backups = backups
        self._marks: dict[int, int] = {}
        self._kept: set[int] = set()
        self._gap_told = (0, -2)

    @property
    def reported(self) -> int:
        """The version that a beat reports: the last one applied, or -2 if this server does not follow the log."""
        return self.applied if self.follows_log else -2

    @property
    def kept(self) -> Set[int]:
        """Versions that stay readable after the next commit."""
        return self._kept

    def mark(self, version: int) -> int | None:
        """The lowest step that `version` lacks; None if nothing may be computed on that version any more."""
        return self._marks.get(version)

    def age(self, step: int, bases: Iterable[int]) -> tuple[int, int]:
        """How old the oldest of `bases` is for `step`: the steps that it may lack, and the versions applied since."""
        known = list(bases)
        return max(staleness(step, self._marks[b]) for b in known), self.applied - min(known)

    def is_over(self, step: int) -> bool:
        """Whether `step` is committed, or will never be because the job ends before it."""
        if step == INIT_STEP:
            return self.applied >= 0
        return self.watermark.has(step) or self._plan.is_beyond_end(step)

    # ------------------------------------------------------------ commits

    def advance(self, commit: Commit) -> None:
        """Note that `commit` is applied."""
        self.applied = commit.version
        self.watermark.add(commit.step)
        self._marks[commit.version] = self.watermark.low
        self._prune()

    def notice_gap(self, epoch: int) -> bool:
        """Note that a commit came out of order; True if this was not reported yet for this version and placement."""
        told, self._gap_told = self._gap_told, (epoch, self.applied)
        return told != self._gap_told

    def _prune(self) -> None:
        """Forget the watermarks of versions on which nothing may be computed any more."""
        schedule = self._plan.schedule
        window = schedule.window(self.watermark.low) if schedule.segments else 0
        if window < 0:
            while len(self._marks) > _MAX_MARKS:
                del self._marks[next(iter(self._marks))]
            return
        while self._marks:
            oldest = next(iter(self._marks))
            if oldest == self.applied or self._marks[oldest] >= self.watermark.low - window:
                return
            del self._marks[oldest]

    # ------------------------------------------------------------ readable versions

    def keep(self, version: int) -> None:
        """Keep the current version, which is `version`, readable."""
        self._kept.add(version)
        if self._own.blocks:
            self._own.store.versions.keep(version)
        self._backups.keep(version)

    def release(self, version: int) -> None:
        """Stop keeping `version` readable."""
        self._kept.discard(version)
        self._own.store.versions.release(version)
        self._backups.release(version)

    # ------------------------------------------------------------ placements

    def reset(self) -> None:
        """Forget all versions: an incarnation begins. The stores forget theirs when they are opened."""
        self.applied = -1
        self.watermark = Watermark()
        self.follows_log = False
        self._marks.clear()
        self._kept.clear()
        self._gap_told = (0, -2)

    def restore(self, version: int, watermark: Watermark) -> None:
        """Set the applied version; no gradient may be computed on an older one."""
        self.applied, self.watermark = version, watermark
        self._marks = {version: watermark.low} if version >= 0 else {}

    def follow(self) -> None:
        """Apply every commit from now on: this server has blocks."""
        self.follows_log = True

    def move(self, oldest: int) -> None:
        """Begin another placement, in which this server keeps blocks; release all versions before `oldest`.

        Of some blocks this server has no version before `oldest`. No reader waits for an older version:
        otherwise these blocks would not have been copied.
        """
        for version in [v for v in self._kept if v < oldest]:
            self.release(version)
        self.restore(self.applied, self.watermark)
        if self.applied in self._kept:
            self.keep(self.applied)  # for blocks that came from another group, which has not kept it

    def wait_for_blocks(self, message: Assign) -> None:
        """Begin without blocks: copies for this server start at the last version of the job, which `message` names."""
        self.follows_log = bool(self._backups.joining)
        self._kept.clear()
        self.restore(message.at, Watermark(*message.begun))
