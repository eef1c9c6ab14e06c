"""``paceline status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.messages.status import PlacementStatus, RunSummary, Status


@click.command("status")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def command(run: Path | None, as_json: bool) -> None:
    """Show what RUN (by default runs/latest) is doing, or how it ended."""
    import json

    import msgspec

    from paceline.clients.observer import Observer
    from paceline.coordinator.status import describe
    from paceline.errors import TransportError
    from paceline.messages.status import RunSummary
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    path, token = where.path, where.token()
    if where.summary_file.exists():
        text = where.summary_file.read_text()
        if as_json:
            click.echo(json.dumps(json.loads(text), indent=2))
            return
        summary = msgspec.json.decode(text, type=RunSummary)
        click.echo(f"{path}: done after {summary.steps} steps")
        for line in _recovered(summary, summary.generations):
            click.echo(line)
        return
    if (end := where.end()) is not None and not where.launched:
        click.echo(json.dumps(end, indent=2) if as_json else _ended(path, end))
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
            f"`paceline run --resume {path}` continues the run"
        )
        return
    finally:
        observer.close()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(status), indent=2))
    else:
        click.echo(f"{path}: {status.state}")
        if status.headline:
            click.echo(status.headline)
        click.echo(describe(status))
        for line in (*_copies(status), *_recovered(status, status.generation), _checkpoint(status)):
            click.echo(line)


def _ended(path: Path, end: Mapping[str, Any]) -> str:
    """Says in words how a run ended that was not completed."""
    import time

    at = f" at step {end['step']} of {end['end_step']}" if end.get("end_step") else ""
    checkpoint = end.get("checkpoint")
    kept = f"; checkpoint {checkpoint['folder']}, step {checkpoint['step']}" if checkpoint else ""
    kept = kept or "; no checkpoint" * ("checkpoint" in end)  # absent if the run ended before the first status
    ago = f"{max(0.0, time.time() - end['at']):,.0f} s ago"
    return f"{path}: {end['reason']}{at}, {ago}{kept}. `paceline run --resume {path}` continues the run"


def _copies(status: Status) -> Iterator[str]:
    """Lines that say how many blocks each server holds, and whether every block has its copies."""
    placement, wanted = status.placement, status.wanted_servers
    pids = {process.name: process.pid for process in status.processes}
    for name in sorted({*status.servers, *placement.servers}):
        primary, backup = placement.servers.get(name, (0, 0))
        holds = f"primary of {counted(primary, 'block')}" + f", backup of {backup}" * bool(status.replicas or backup)
        process = f"{name} (pid {pids[name]})" if name in pids else f"{name} (not connected)"
        yield f"{process}: {holds}" + ", being emptied" * (name in status.draining)
    if wanted is not None and len(status.servers) != wanted:
        yield f"{counted(wanted, 'server')} {'is' if wanted == 1 else 'are'} wanted"
    if status.replicas or placement.building:
        yield copies_in_words(placement, status.replicas)
    if status.changes:
        change = status.changes[-1]
        yield f"{change.age_s:.0f} s ago: {change.why}"


def copies_in_words(placement: PlacementStatus, replicas: int) -> str:
    """A line that says how many copies each block has, how many are missing, and how many are being made."""
    text = f"{counted(replicas, 'copy', 'copies')} of each of {counted(placement.blocks, 'block')}"
    if placement.short:
        text += f"; {counted(placement.short, 'block')} with fewer"
    elif replicas:
        text += ", all in sync"
    if placement.building:
        text += f"; {placement.building} being made"
    return text


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun in the singular or plural, such as "2 blocks"."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def _checkpoint(status: Status) -> str:
    """A line about the checkpoint from which a rewind or a resumed run would begin."""
    checkpoint = status.checkpoint
    return f"checkpoint: {checkpoint.folder}, step {checkpoint.step}" if checkpoint else "no checkpoint yet"


def _recovered(run: Status | RunSummary, generations: int) -> Iterator[str]:
    """Lines about the losses from which the run has recovered."""
    if lost := run.lost_workers:
        yield f"{counted(lost, 'worker')} {'was' if lost == 1 else 'were'} lost"
    if generations > 1:
        yield f"the coordinator was started {generations} times"
    if run.failovers:
        times = counted(run.failovers, "time")
        yield f"a backup took over {times}; the longest pause of commits was {run.failover_s:.1f} s"
    if run.rewinds:
        times, steps = counted(run.rewinds, "time"), counted(run.recomputed_steps, "step")
        yield f"rewound {times}: {steps} computed again"
