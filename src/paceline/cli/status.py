"""``paceline status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click


@click.command("status")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def command(run: Path | None, as_json: bool) -> None:
    """Show what RUN (by default runs/latest) is doing, or how it ended."""
    import json

    from paceline.clients.observer import Observer
    from paceline.coordinator.report import describe
    from paceline.errors import TransportError
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    path, token = where.path, where.token()
    if where.summary_file.exists():
        summary = json.loads(where.summary_file.read_text())
        click.echo(json.dumps(summary, indent=2) if as_json else f"{path}: done after {summary['steps']} steps")
        return
    if where.coordinator() is None:
        click.echo(f"{path}: not started")
        return
    observer = Observer(where.coordinator, token)
    try:
        status = observer.status(timeout_s=where.answer_s)
    except TransportError:
        click.echo(
            f"{path}: no coordinator is running, and the run left no summary; see {where.logs}. "
            f"`paceline run --resume {path}` goes on with it"
        )
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
        for line in (*_copies(status), *_recovered(status)):
            click.echo(line)


def _copies(status: Mapping[str, Any]) -> Iterator[str]:
    """Which servers hold what, and whether every block has its copies."""
    from paceline.coordinator.copies import told

    placement, wanted = status["placement"], status["wanted_servers"]
    for name in sorted({*status["servers"], *placement["servers"]}):
        primary, backup = placement["servers"].get(name, (0, 0))
        holds = f"primary of {primary} blocks" + f", backup of {backup}" * bool(status["replicas"] or backup)
        yield f"{name}: {holds}" + ", being emptied" * (name in status["draining"])
    if len(status["servers"]) != wanted:
        yield f"{wanted} servers are wanted"
    if status["replicas"] or placement["building"]:
        yield told(placement, status["replicas"])


def _recovered(status: Mapping[str, Any]) -> Iterator[str]:
    """What the run has lived through, and what it could go back to."""
    if status.get("lost_workers"):
        yield f"{status['lost_workers']} workers were lost"
    if status.get("generation", 1) > 1:
        yield f"the coordinator was started {status['generation']} times"
    if status.get("failovers"):
        number, pause_s = status["failovers"], status["failover_s"]
        yield f"a backup took over {number} time{'s' * (number != 1)}; the longest pause of commits was {pause_s:.1f} s"
    if status.get("rewinds"):
        yield f"rewound {status['rewinds']} times: {status['recomputed_steps']} steps computed again"
    checkpoint = status.get("checkpoint")
    yield f"checkpoint: {checkpoint['folder']}, step {checkpoint['step']}" if checkpoint else "no checkpoint yet"
