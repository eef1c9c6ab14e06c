"""``paceline compare``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page with pictures.")
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Put RUNS side by side: how they ended, their speed and their metrics."""
    from paceline.engines.report_page import comparison_page, comparison_rows
    from paceline.engines.run_figures import figures_of
    from paceline.runtime.rundir import RunDir, replace_file

    found = [figures_of(RunDir.named(run)) for run in runs]
    rows = comparison_rows(found)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if out is not None:
        replace_file(out, comparison_page(found))
