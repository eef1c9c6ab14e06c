"""The next version before its commit: workers with a lease of the next step may read it. Rule 21.

In lock-step the next version follows from the sum of a step, commit or not. So a server that has said `Ready` hands it
out. What was read this way is named by the placement epoch: a change of placement voids it.
"""

from __future__ import annotations

from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.block_store import SumKey
from paceline.core.server.held_versions import HeldVersions
from paceline.messages import Push
from paceline.types import INIT_STEP, Commit, Hyper


class Ahead:
    """The version after the applied one: whether it is computed, may be read, and was read.

    `handed_out` is the version that some worker has read before its commit, in this placement; -1 if there is none.
    """

    def __init__(self, versions: HeldVersions, own: BlockGroup) -> None:
        self.handed_out = -1
        self._versions = versions
        self._own = own
        self._expected: tuple[SumKey, Hyper] | None = None
        self._hyper: Hyper = ()
        self._ready_step = INIT_STEP
        self._is_new = False

    # ------------------------------------------------------------ making

    def expect(self, key: SumKey, hyper: Hyper) -> None:
        """Let the next `make` compute the version that the complete sum `key` makes with `hyper`."""
        self._expected = key, hyper

    def allow(self, step: int) -> None:
        """Note that `Ready` was said of `step`: the version that it makes may be read."""
        self._ready_step, self._is_new = step, True

    @property
    def is_due(self) -> bool:
        """Whether `make` has something to compute, or to offer to readers."""
        return self._is_new or self._expected is not None

    def make(self) -> bool:
        """Compute the expected version, if there is one, beside the applied one; True if readers now may get it.

        Only one version ahead: a sum is complete only after the commit before it is applied.
        """
        if self._expected is not None:
            (key, hyper), self._expected = self._expected, None
            if self._own.store.update_early(key, hyper):
                self._hyper = hyper
        was_new, self._is_new = self._is_new, False
        return was_new and self.version >= 0

    @property
    def version(self) -> int:
        """The version that may be read before its commit; -1 if there is none."""
        version = self._own.store.versions.ahead
        follows = version == self._versions.applied + 1 == self._ready_step + 1
        return version if follows else -1

    # ------------------------------------------------------------ what was handed out

    def hand_out(self, version: int) -> None:
        """Note that a worker gets `version`, which is not committed."""
        self.handed_out = version

    def is_base(self, push: Push) -> bool:
        """Whether `push` was computed on what was handed out here, which is not committed yet."""
        return push.base == self.handed_out == self._versions.applied + 1

    def contradicts(self, commit: Commit) -> bool:
        """Whether `commit` makes another version than the one that was handed out for it."""
        return commit.version == self.handed_out and commit.hyper != self._hyper

    def void(self) -> None:
        """Forget what may be read, and what was read: the placement or the incarnation ends."""
        self.handed_out = -1
        self._expected = None
        self._ready_step = INIT_STEP
