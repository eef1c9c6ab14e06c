"""``paceline drain``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("drain")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("host")
@click.option("--undo", is_flag=True, help="Let the host take roles and blocks again.")
def command(run: Path, host: str, undo: bool) -> None:
    """Empty HOST of RUN without losing a step: its blocks and its workers move to other hosts, then its agent ends."""
    from paceline.errors import DeadlineError, UsageError
    from paceline.runtime.observing import observing
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    try:
        with observing(where) as observer:
            observer.drain(host, undo=undo)
    except DeadlineError:
        raise UsageError(
            f"no coordinator of {where.path} answers: only hosts of a running run can be emptied"
        ) from None
    click.echo(f"{where.path}: host {host} {'takes part again' if undo else 'is being emptied'}")
