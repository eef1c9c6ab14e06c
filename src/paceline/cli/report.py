"""``paceline report``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Where.  [default: RUN/report.html]")
def command(run: Path | None, out: Path | None) -> None:
    """Write one HTML page about RUN (by default runs/latest): curves, events, faults. It needs no network."""
    from paceline.engines.report_page import REPORT, report_page
    from paceline.engines.run_figures import figures_of
    from paceline.runtime.rundir import RunDir, replace_file

    where = RunDir.named(run)
    file = where.path / REPORT if out is None else out
    replace_file(file, report_page(figures_of(where)))
    click.echo(file)
