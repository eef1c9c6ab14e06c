"""``paceline join``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.log_options import log_options


@click.command("join", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@log_options
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(run: Path, script: Path | None, arguments: tuple[str, ...], module: bool, **options: str | None) -> None:
    """Add a worker to RUN, which must be running. By default it runs the script and arguments of the run.

    The worker stays in the foreground. After Ctrl-C or SIGTERM it gives back its lease and leaves; the run continues.
    Exit codes: 0 the job is done, or the worker has left; 1 the script failed; 2 usage; 3 the run was lost.
    """
    from paceline.engines.join import JoinedWorker
    from paceline.engines.module_file import named_script
    from paceline.engines.plan import RunPlan
    from paceline.errors import UsageError
    from paceline.runtime.rundir import RunDir
    from paceline.telemetry import logs

    where = RunDir.named(run)
    where.token()
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if script is not None:
        changes |= {**named_script(script, is_module=module), "arguments": arguments, "cwd": Path.cwd()}
    elif module:
        raise UsageError("-m: give the name of the module to run")
    plan = RunPlan.of(where.path, **changes)
    logs.set_up(plan.log_level, plan.log_format, process="join")

    def show(text: str, error: bool) -> None:
        click.echo(text, err=error)

    sys.exit(JoinedWorker(plan, show, lambda text: click.echo(f"paceline: {text}", err=True)).run())
