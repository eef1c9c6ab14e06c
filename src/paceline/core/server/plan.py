"""The coordinator's plan as this server knows it: the segments of the incarnation, and the job's last version."""

from __future__ import annotations

from paceline.core.schedule import Schedule
from paceline.messages import Plan


class KnownPlan:
    """The newest plan. `final` is the last version of a stopped job, or -1 if the job goes on."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.revision = 0
        self.final = -1

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
