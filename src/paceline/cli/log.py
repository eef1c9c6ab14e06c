"""``paceline log``."""

from __future__ import annotations

from pathlib import Path

import click

_KINDS = ("job", "member", "placement", "rewind", "segment", "policy", "validation", "checkpoint", "warning", "stop")


@click.command("log")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--kind", type=click.Choice(_KINDS), multiple=True, help="Only events of this kind; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as JSON.")
@click.option("--rebuild", is_flag=True, help="Write events.jsonl of RUN anew from its log.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Write all metrics as CSV instead.")
@click.option(
    "--parquet", type=click.Path(path_type=Path), metavar="FILE", help="Write all metrics as Parquet instead."
)
def command(
    run: Path | None,
    follow: bool,
    kind: tuple[str, ...],
    as_json: bool,
    rebuild: bool,
    csv: Path | None,
    parquet: Path | None,
) -> None:
    """Show what happened in RUN (by default runs/latest), from its log."""
    from paceline.engines.run_log import follow_records, write_csv, write_parquet
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    if csv is not None:
        click.echo(f"{csv}: {write_csv(where, csv)} rows", err=True)
    if parquet is not None:
        click.echo(f"{parquet}: {write_parquet(where, parquet)} rows", err=True)
    if rebuild:
        from paceline.coordinator.record_files import rebuild as rebuild_files

        click.echo(f"{where.path}/events.jsonl: {rebuild_files(where.path, where.log_file)} events", err=True)
    if csv is not None or parquet is not None or rebuild:
        return
    for line in follow_records(where, kind, as_json=as_json, follow=follow):
        click.echo(line)
