"""``paceline checkpoints``."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("checkpoints")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--verify/--no-verify", default=True, show_default=True, help="Read every byte and check it.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(run: Path | None, verify: bool, as_json: bool) -> None:
    """List the checkpoints of RUN (by default runs/latest), the oldest first, and name the damaged ones.

    Exit codes: 0 at least one checkpoint is complete and none is damaged, 1 otherwise. A checkpoint that was never
    completed is not damaged.
    """
    import time

    import msgspec

    from paceline.checkpoint.listing import lines_of, rows_of
    from paceline.checkpoint.manifest import list_checkpoints
    from paceline.checkpoint.storage import open_storage
    from paceline.errors import StateError
    from paceline.runtime.rundir import RunDir

    storage = open_storage(RunDir.named(run).checkpoints)
    try:
        rows = rows_of(list_checkpoints(storage, verify=verify), time.time())
    except OSError as error:
        raise StateError(f"cannot list the checkpoints in {storage.url}: {error.strerror or error}") from None
    if as_json:
        content = {"where": storage.url, "verified": verify, "checkpoints": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(content), indent=2))
    elif not rows:
        click.echo(f"{storage.url}: no checkpoints")
    else:
        click.echo(f"{storage.url}:")
        for line in lines_of(rows):
            click.echo(line)
    complete, damaged = any(row.problem is None for row in rows), any(row.damaged for row in rows)
    sys.exit(0 if complete and not damaged else 1)
