"""``paceline scale``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("scale")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-w", "--workers", type=int, required=True, help="Worker processes that the run is to have.")
def command(run: Path | None, workers: int) -> None:
    """Change the number of workers of RUN (by default runs/latest) while it runs; its launcher starts or ends them."""
    from paceline.clients.observer import Observer
    from paceline.errors import TransportError, UsageError
    from paceline.runtime.rundir import RunDir

    if workers < 1:
        raise UsageError(f"--workers must be at least 1, not {workers}")
    where = RunDir.named(run)
    path, token = where.path, where.token()
    if where.summary_file.exists():
        raise UsageError(f"{path} is over")
    observer = Observer(where.coordinator, token)
    try:
        before = observer.status(timeout_s=where.answer_s)["wanted_workers"]
        observer.scale(workers)
    except TransportError:
        raise UsageError(f"no coordinator of {path} answers: it is not running") from None
    finally:
        observer.close()
    number = f"{path}: {workers} worker{'s' * (workers != 1)}"
    if workers > before:
        click.echo(f"{number} instead of {before}; the new ones join as soon as they have started")
    elif workers < before:
        click.echo(f"{number} instead of {before}; the newest hand back their leases and leave")
    else:
        click.echo(f"{number}, as before")
