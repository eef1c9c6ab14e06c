"""``paceline runs``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engines.runs import RunRow

_STATES = ("done", "running", "failed", "interrupted", "unfinished")
_ROOT = Path("runs")


@click.command("runs")
@click.argument("names", nargs=-1, metavar="[DIR | NAME...]")
@click.option("--prune", is_flag=True, help="Remove the runs called NAME, or all that match --state and --older-than.")
@click.option("--older-than", metavar="7d", help="Only runs that have not changed for this time (s, m, h, d, w).")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only runs in this state.")
@click.option("--dir", "root", type=click.Path(path_type=Path), help="The directory with the runs.  [default: runs]")
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def command(
    names: tuple[str, ...],
    prune: bool,
    older_than: str | None,
    states: tuple[str, ...],
    root: Path | None,
    as_json: bool,
) -> None:
    """List the runs in DIR (by default runs/), the newest last, or remove runs.

    A running run is never removed, and checkpoints outside of the run directory are kept. Exit codes: 0 done; 1 a run
    could not be removed; 2 usage.
    """
    import time

    import msgspec

    from paceline.engines.runs import choose, list_runs, parse_age
    from paceline.errors import UsageError

    older_than_s = None if older_than is None else parse_age(older_than)
    if prune:
        sys.exit(_prune(root or _ROOT, names, states, older_than_s))
    if len(names) > 1 or (names and root is not None):
        raise UsageError("give only one directory to list, or add --prune to remove the runs that you name")
    folder = root or Path(names[0] if names else _ROOT)
    rows = list(choose(list_runs(folder, time.time()), states, older_than_s))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
    elif not rows:
        click.echo(f"{folder}: no runs")
    else:
        for line in _table(rows):
            click.echo(line)


def _prune(root: Path, names: Sequence[str], states: Sequence[str], older_than_s: float | None) -> int:
    import time

    from paceline.engines.runs import RUNNING, choose, describe_run, find_run, list_runs, remove_run
    from paceline.errors import UsageError

    if not names and not states and older_than_s is None:
        raise UsageError("name the runs to remove, or give --state or --older-than")
    now = time.time()
    rows = [describe_run(find_run(root, name), now) for name in names]  # raises before anything is removed
    if not names:
        rows = [row for row in list_runs(root, now) if row.state != RUNNING]
    removed, freed, refused = 0, 0, 0
    for row in choose(rows, states, older_than_s):
        try:
            nbytes = remove_run(Path(row.path))
        except UsageError as error:
            refused += 1
            click.echo(f"paceline: {error}", err=True)
            continue
        removed, freed = removed + 1, freed + nbytes
        click.echo(f"removed {row.path} ({row.state}, {_size(nbytes)})")
    click.echo(f"{removed} run{'s' * (removed != 1)} removed, {_size(freed)} freed")
    return 1 if refused else 0


def _table(rows: Sequence[RunRow]) -> list[str]:
    cells = [("name", "state", "step", "size", "age")]
    cells += [
        (row.name, row.state, "-" if row.step is None else str(row.step), _size(row.nbytes), _age(row.age_s))
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    return [
        f"{name:<{widths[0]}}  {state:<{widths[1]}}  {step:>{widths[2]}}  {size:>{widths[3]}}  {age:>{widths[4]}}"
        for name, state, step, size, age in cells
    ]


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
