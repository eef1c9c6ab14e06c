"""Dials that the script of a worker changes while the job runs."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.live import change_of
from paceline.messages import DialsSet, SetDials
from paceline.worker.session import Session


def set_dials(session: Session, given: Mapping[str, object], step: int | None, *, passed: bool) -> int:
    """Change the dials that are `given`, by name, in a turn of `step`; returns the step from which on they hold.

    Raises:
        UsageError: a dial cannot have this value; the job goes on as it was.
    """
    change = change_of({name: str(value) for name, value in given.items() if value is not None})
    reason, at = ("job.set", -1) if step is None else (f"job.set in step {step}", step)
    return session.ask(lambda req: SetDials(req, change, at, reason, passed), DialsSet).step
