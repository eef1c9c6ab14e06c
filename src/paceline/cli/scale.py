"""``paceline scale``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paceline.messages.status import Status
    from paceline.runtime.rundir import RunDir


@click.command("scale")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-w", "--workers", type=int, help="How many worker processes the run shall have.")
@click.option("-s", "--servers", type=int, help="How many parameter servers the run shall have.")
def command(run: Path | None, workers: int | None, servers: int | None) -> None:
    """Change the size of RUN (by default runs/latest) while it runs; its launcher starts or ends processes.

    While the job runs, blocks move to new servers, and from servers that leave to the others.
    """
    from paceline.errors import DeadlineError, UsageError
    from paceline.runtime.observing import observing
    from paceline.runtime.rundir import RunDir

    if workers is None and servers is None:
        raise UsageError("give --workers, --servers or both")
    for option, number in (("--workers", workers), ("--servers", servers)):
        if number is not None and number < 1:
            raise UsageError(f"{option} must be at least 1, not {number}")
    where = RunDir.named(run)
    path = where.path
    where.token()
    if where.done:
        raise UsageError(f"the run in {path} has ended and cannot be scaled")
    try:
        with observing(where) as observer:
            before = observer.status(timeout_s=where.answer_s)
            if servers is not None:
                _check_replicas(servers, before)
            observer.scale(workers or 0, servers or 0)
    except DeadlineError:
        raise UsageError(f"no coordinator of {path} answers: only a running run can be scaled") from None
    _keep(where, {"workers": workers, "servers": servers})
    if workers is not None:
        click.echo(f"{path}: {_change('worker', workers, before.wanted_workers or 0)}")
    if servers is not None:
        click.echo(f"{path}: {_change('server', servers, before.wanted_servers or 0, len(before.draining))}")


def _keep(where: RunDir, wanted: Mapping[str, int | None]) -> None:
    """Write the wanted size to the run's plan for `--resume`: the launcher may end before it learns the size.

    The size in the log cannot be used for that: when a worker is given up, the launcher itself asks for one fewer, and
    a resumed run shall have that worker again.
    """
    from paceline.errors import UsageError

    with suppress(OSError, UsageError):  # the coordinator has the size, and the launcher writes it too
        if plan := where.plan():
            where.write_plan(plan | {role: number for role, number in wanted.items() if number is not None})


def _check_replicas(servers: int, status: Status) -> None:
    from paceline.errors import UsageError

    if servers <= status.replicas:
        raise UsageError(
            f"--servers {servers}: the run was started with --replicas {status.replicas}, which needs "
            f"{status.replicas + 1} servers"
        )


_COMES = {
    "worker": "the new workers join when they have started",
    "server": "blocks move to the new servers when they have started",
}
_GOES = {
    "worker": "the newest workers give back their leases and leave",
    "server": "the newest servers end when their blocks have moved to the others",
}


def _change(role: str, number: int, before: int, leaving: int = 0) -> str:
    """Says in words what a new number of processes leads to. `leaving` of the running processes were about to leave."""
    text = f"{number} {role}{'s' * (number != 1)}"
    if number == before:
        return f"{text}, as before"
    if before < number <= before + leaving:
        return f"{text} instead of {before}; servers that were being emptied stay"
    return f"{text} instead of {before}; {(_COMES if number > before else _GOES)[role]}"
