"""``paceline scale``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("scale")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-w", "--workers", type=int, help="How many worker processes the run shall have.")
@click.option("-s", "--servers", type=int, help="How many parameter servers the run shall have.")
@click.option("--samplers", type=int, help="How many processes shall prepare data.")
def command(run: Path | None, workers: int | None, servers: int | None, samplers: int | None) -> None:
    """Change the size of RUN (by default runs/latest) while it runs; its launcher starts or ends processes.

    While the job runs, blocks move to new servers, and from servers that leave to the others.
    """
    from paceline.engines.scaling import scale_run
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    path = where.path
    before = scale_run(where, workers, servers, samplers)
    if workers is not None:
        click.echo(f"{path}: {_change('worker', workers, before.wanted_workers or 0)}")
    if servers is not None:
        click.echo(f"{path}: {_change('server', servers, before.wanted_servers or 0, len(before.draining))}")
    if samplers is not None:
        click.echo(f"{path}: {_change('sampler', samplers, len(before.samplers))}")


_COMES = {
    "worker": "the new workers join when they have started",
    "server": "blocks move to the new servers when they have started",
    "sampler": "workers ask the new samplers when they have started",
}
_GOES = {
    "worker": "the newest workers give back their leases and leave",
    "server": "the newest servers end when their blocks have moved to the others",
    "sampler": "the newest samplers end",
}


def _change(role: str, number: int, before: int, leaving: int = 0) -> str:
    """Says in words what a new number of processes leads to. `leaving` of the running processes were about to leave."""
    text = f"{number} {role}{'s' * (number != 1)}"
    if number == before:
        return f"{text}, as before"
    if before < number <= before + leaving:
        return f"{text} instead of {before}; servers that were being emptied stay"
    return f"{text} instead of {before}; {(_COMES if number > before else _GOES)[role]}"
