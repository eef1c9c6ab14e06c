"""The versions that this server has: the last one that it applied, those it keeps readable, and what each contains."""

from __future__ import annotations

from collections.abc import Iterable, Set

from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.plan import KnownPlan
from paceline.core.window import Watermark, staleness
from paceline.messages import Assign
from paceline.types import INIT_STEP, Commit

_MAX_MARKS = 100_000  # with an unlimited window: versions so old that no worker still computes on them


class HeldVersions:
    """`applied` is the last version that this server applied, and `watermark` has the steps that it contains.

    `follows_log` is False on a server that has no blocks and is sent none: it applies no commits.
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
        """What a beat says: the last version, -2 if this server does not follow the log."""
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
        """`commit` is applied."""
        self.applied = commit.version
        self.watermark.add(commit.step)
        self._marks[commit.version] = self.watermark.low
        self._prune()

    def notice_gap(self, epoch: int) -> bool:
        """A commit came out of order: True once for each version that this server stops at in a placement."""
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
        """`version` need not stay readable."""
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
        """This server is at `version`; nothing may be computed on an older one."""
        self.applied, self.watermark = version, watermark
        self._marks = {version: watermark.low} if version >= 0 else {}

    def follow(self) -> None:
        """This server has blocks: it applies every commit."""
        self.follows_log = True

    def move(self, oldest: int) -> None:
        """Another placement begins, and this server goes on with its blocks.

        Of some blocks it has no version before `oldest`: no reader waits for an older one, or there would be no copy.
        """
        for version in [v for v in self._kept if v < oldest]:
            self.release(version)
        self.restore(self.applied, self.watermark)
        if self.applied in self._kept:
            self.keep(self.applied)  # blocks that came from another group are not kept yet

    def wait_for_blocks(self, message: Assign) -> None:
        """This server has no blocks; copies that it is sent begin at the job's last version, which `message` names."""
        self.follows_log = bool(self._backups.joining)
        self._kept.clear()
        self.restore(message.at, Watermark(*message.begun))
