"""``paceline status``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("status")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def command(run: Path | None, as_json: bool) -> None:
    """Show what RUN (by default runs/latest) is doing, or how it ended."""
    import json

    from paceline.clients.observer import Observer
    from paceline.coordinator.report import describe
    from paceline.errors import TransportError, UsageError
    from paceline.runtime.rundir import RunDir

    path = run or Path("runs/latest")
    if not path.is_dir():
        raise UsageError(f"{path} is not a run directory; give one, or start a run with `paceline run`")
    where = RunDir(path)
    token = where.token()
    if where.summary_file.exists():
        summary = json.loads(where.summary_file.read_text())
        click.echo(json.dumps(summary, indent=2) if as_json else f"{path}: done after {summary['steps']} steps")
        return
    address = where.coordinator()
    if address is None:
        click.echo(f"{path}: not started")
        return
    observer = Observer(address, token)
    try:
        status = observer.status(timeout_s=2.0)
    except TransportError:
        click.echo(f"{path}: no coordinator is running, and the run left no summary; see {where.logs}")
        return
    finally:
        observer.close()
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        click.echo(f"{path}: {status['state']}")
        if status["headline"]:
            click.echo(status["headline"])
        click.echo(describe(status))
