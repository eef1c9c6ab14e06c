"""The coordinator's plan as this server knows it: the segments of the incarnation, and the job's last version."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.schedule import Schedule
from paceline.messages import Plan
from paceline.types import INIT_STEP


class KnownPlan:
    """The newest plan. `final` is the last version of a stopped job, or -1 if the job goes on."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.revision = 0
        self.final = -1

    def outdates(self, plan: Plan, steps: Iterable[tuple[int, int]]) -> list[int]:
        """The steps, each given with the revision that it was begun by, whose segment is another one in `plan`.

        A step of a revision that `plan` does not know is newer than `plan`: a copy may get its sum before the plan. A
        plan that ends the job early voids nothing: with a window, steps after the end may be committed.
        """
        if plan.revision <= self.revision or plan.final >= 0:
            return []
        new, old = Schedule(plan.segments), [(s, r) for s, r in steps if s != INIT_STEP and r < plan.revision]
        return [step for step, known in old if not (new.covers(step) and new.revision_of(step) == known)]

    def take(self, plan: Plan) -> None:
        """Replace the schedule if `plan` has a higher revision; ignore a plan with a lower revision."""
        if plan.revision < self.revision:
            return
        if plan.revision > self.revision:
            self.schedule, self.revision = Schedule(plan.segments), plan.revision
        self.final = max(self.final, plan.final)

    def reset(self) -> None:
        """Forget the plan: an incarnation begins."""
        self.schedule, self.revision, self.final = Schedule(), 0, -1

    def is_beyond_end(self, step: int) -> bool:
        """Whether the job was stopped before `step`."""
        return self.final >= 0 and step >= self.schedule.end_step
