"""``paceline join``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.log_options import log_options


@click.command("join", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@log_options
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(run: Path, script: Path | None, arguments: tuple[str, ...], **options: str | None) -> None:
    """Add a worker to RUN, which must be running. By default it runs the script and arguments of the run.

    The worker stays in the foreground. After Ctrl-C or SIGTERM it gives back its lease and leaves; the run continues.
    Exit codes: 0 the job is done, or the worker has left; 1 the script failed; 2 usage; 3 the run was lost.
    """
    from paceline.engines.join import JoinedWorker
    from paceline.engines.plan import RunPlan
    from paceline.runtime.rundir import RunDir
    from paceline.telemetry import logs

    RunDir.named(run).token()
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if script is not None:
        changes |= {"script": script, "arguments": arguments, "cwd": Path.cwd()}
    plan = RunPlan.of(run, **changes)
    logs.set_up(plan.log_level, plan.log_format, process="join")
    sys.exit(JoinedWorker(plan, click.echo, lambda text: click.echo(f"paceline: {text}", err=True)).run())
