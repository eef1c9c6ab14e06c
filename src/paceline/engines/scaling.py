"""Changes the number of workers, servers and samplers of a running run, whose launcher may be another process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from paceline.errors import DeadlineError, UsageError
from paceline.messages.status import Status
from paceline.runtime.observing import observing
from paceline.runtime.rundir import RunDir


def scale_run(where: RunDir, workers: int | None, servers: int | None, samplers: int | None = None) -> Status:
    """Set how many processes of each role the run shall have; None is no change. Returns the status before.

    Raises:
        UsageError: a number is not allowed, or the run does not run.
    """
    if workers is None and servers is None and samplers is None:
        raise UsageError("give --workers, --servers, --samplers or several of them")
    for option, number, least in (("--workers", workers, 1), ("--servers", servers, 1), ("--samplers", samplers, 0)):
        if number is not None and number < least:
            raise UsageError(f"{option} must be at least {least}, not {number}")
    where.token()
    if where.done:
        raise UsageError(f"the run in {where.path} has ended and cannot be scaled")
    try:
        with observing(where) as observer:
            before = observer.status(timeout_s=where.answer_s)
            if servers is not None:
                _check_replicas(servers, before)
            observer.scale(workers or 0, servers or 0, -1 if samplers is None else samplers)
    except DeadlineError:
        raise UsageError(f"no coordinator of {where.path} answers: only a running run can be scaled") from None
    _keep(where, {"workers": workers, "servers": servers, "samplers": samplers})
    return before


def _keep(where: RunDir, wanted: Mapping[str, int | None]) -> None:
    """Write the wanted size to the run's plan for `--resume`: the launcher may end before it learns the size.

    The size in the log cannot be used for that: when a worker is given up, the launcher itself asks for one fewer, and
    a resumed run shall have that worker again.
    """
    with suppress(OSError, UsageError):  # the coordinator has the size, and the launcher writes it too
        if plan := where.plan():
            where.write_plan(plan | {role: number for role, number in wanted.items() if number is not None})


def _check_replicas(servers: int, status: Status) -> None:
    if servers <= status.replicas:
        raise UsageError(
            f"--servers {servers}: the run was started with --replicas {status.replicas}, which needs "
            f"{status.replicas + 1} servers"
        )
