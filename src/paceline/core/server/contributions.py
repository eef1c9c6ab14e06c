"""Steps that a group of members sums together: what this member adds, and when. Rules 17 and 18.

A step is closed first: the coordinator names the attempt of each slot, and the member that has it. A member adds the
attempts that are its own, or nothing; it adds them once, and in the order of the steps. In a group on one host every
member gets all attempts, and adds them itself, in slot order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.effects import Send
from paceline.core.server.assignment import Assignment
from paceline.core.server.attempts import Attempts
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.core.server.held_versions import HeldVersions
from paceline.core.server.plan import KnownPlan
from paceline.messages import Broken, Close
from paceline.types import COORDINATOR, INIT_STEP, Fence


@dataclass(frozen=True, slots=True)
class Contribution:
    """What this member adds to the sum of a step. The shell reduces `part` with those of the other members of `group`.

    `at` is the incarnation and the epoch, `ranks` the rank of the member that has each slot.
    """

    at: tuple[int, int]
    step: int
    rank: int
    size: int
    ranks: tuple[int, ...]
    part: object


class Contributions:
    """The closings of steps that are not committed yet, and the step that the group reduces now."""

    def __init__(
        self, assignment: Assignment, plan: KnownPlan, versions: HeldVersions, own: BlockGroup, attempts: Attempts
    ) -> None:
        self._assignment = assignment
        self._plan = plan
        self._versions = versions
        self._own = own
        self._attempts = attempts
        self._at = (0, 0)
        self._closed: dict[int, Close] = {}
        self._begun: int | None = None
        self._broken: Broken | None = None

    def close(self, message: Close, now: float) -> list[Send]:
        """Note the closing of a step."""
        assignment = self._assignment
        self._follow()
        current = (message.incarnation, message.epoch) == assignment.at and bool(assignment.group)
        if current and not self._versions.is_over(message.step):
            self._closed.setdefault(message.step, message)
        return []

    def take(self) -> Contribution | None:
        """What this member adds to the next step, once; None if there is nothing to add now.

        A step begins when the version before it is applied here: so the members reduce the steps in one order.
        """
        assignment, closing = self._assignment, self._next()
        if closing is None or assignment.near:
            return None
        step = closing.step
        mine = {slot: closing.fences[slot] for slot in self._mine(closing)}
        attempts = self._sealed(step, mine) if mine else []
        if attempts is None:
            return None
        self._begun = step
        group = assignment.group
        ranks = tuple(group.index(node) for node in closing.members)
        part = self._own.store.group_sums.contribute(step, len(closing.fences), attempts)
        return Contribution(assignment.at, step, group.index(assignment.node), len(group), ranks, part)

    def add_all(self, now: float) -> list[Send]:
        """Add all slots of the next step, in a group on one host; report the step as ready. [] if some are missing."""
        closing = self._next() if self._assignment.near else None
        if closing is None:
            return []
        attempts = self._sealed(closing.step, dict(enumerate(closing.fences)))
        if attempts is None:
            return []
        self._begun = closing.step
        key = SumKey(closing.step, None)
        for attempt in attempts:
            self._own.store.sums.add(key, attempt)
        return self._attempts.reduced(closing.step, closing.fences, self._mine(closing), now)

    def _next(self) -> Close | None:
        """The closing of the step that this member may add now; None if there is none, or it has begun."""
        versions = self._versions
        self._follow()
        step = INIT_STEP if versions.applied < 0 else versions.watermark.low
        for over in [known for known in self._closed if versions.is_over(known)]:
            del self._closed[over]
        closing = self._closed.get(step)
        if closing is None or self._begun == step or self._broken is not None or not self._is_planned(closing):
            return None
        return closing

    def _mine(self, closing: Close) -> list[int]:
        """The slots of which this member has the attempts that count."""
        return [slot for slot, node in enumerate(closing.members) if node == self._assignment.node]

    def _sealed(self, step: int, slots: Mapping[int, Fence]) -> list[SealedAttempt] | None:
        known = self._attempts.steps.get(step)
        return None if known is None else known.sealed(slots, self._versions.applied)

    def _is_planned(self, closing: Close) -> bool:
        """Whether this member knows the plan by which the slots were leased: the plan may come after the closing."""
        schedule = self._plan.schedule
        return schedule.covers(closing.step) and schedule.revision_of(closing.step) == closing.revision

    def reduced(self, reduced: Contribution, now: float) -> list[Send]:
        """Take the sum that the group has made; report the step as ready if it has the attempts of the closing."""
        step = reduced.step
        if reduced.at != self._assignment.at or self._begun != step or step not in self._closed:
            return []
        closing, key = self._closed[step], SumKey(step, None)
        found = self._own.store.group_sums.adopt(key, reduced.part, reduced.ranks)
        if found != closing.fences:
            self._own.store.sums.drop(key)
            return self.broke(reduced.at, f"members have not added the slots of step {step} as it was closed")
        return self._attempts.reduced(step, closing.fences, self._mine(closing), now)

    def broke(self, at: tuple[int, int], reason: str) -> list[Send]:
        """Report that the group of `at` cannot reduce any more. This member waits for the next epoch."""
        self._follow()
        if at != self._at or self._broken is not None:
            return []
        self._broken = Broken(*at, reason)
        return self.repeat()

    def repeat(self) -> list[Send]:
        """The report that the group is broken, until the next epoch begins."""
        self._follow()
        return [] if self._broken is None else [Send(COORDINATOR, self._broken)]

    def _follow(self) -> None:
        """Forget all closings of an epoch or incarnation that has ended."""
        if self._at != self._assignment.at:
            self._at = self._assignment.at
            self._closed.clear()
            self._begun = self._broken = None
