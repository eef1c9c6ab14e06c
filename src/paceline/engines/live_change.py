"""Changes the dials of a running run, whose launcher may be another process."""

from __future__ import annotations

from paceline.errors import DeadlineError, UsageError
from paceline.messages import DialsSet
from paceline.runtime.observing import observing
from paceline.runtime.rundir import RunDir
from paceline.types import DialChange

_PATIENCE_S = 30.0  # a coordinator that was just restarted first waits for the reports of the others


def set_dials(where: RunDir, change: DialChange) -> DialsSet:
    """Change dials of the run from the first step on that it can; returns that step, and what was changed.

    Raises:
        UsageError: the run does not run, or refuses the change; it goes on as it was.
    """
    where.token()
    if where.done:
        raise UsageError(f"the run in {where.path} has ended: only a running run can be changed")
    try:
        with observing(where) as observer:
            observer.status(timeout_s=where.answer_s)
            return observer.set_dials(change, "paceline set", timeout_s=_PATIENCE_S)
    except DeadlineError:
        raise UsageError(f"no coordinator of {where.path} answers: only a running run can be changed") from None
