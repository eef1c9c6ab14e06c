"""``paceline audit``."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("audit")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "json_file", metavar="FILE", help="Write the report to FILE as JSON; - prints it.")
def command(run: Path | None, json_file: str | None) -> None:
    """Prove that RUN (by default runs/latest) applied every sample exactly once, while it runs or afterwards.

    Compares the commit log, the hash chains in the checkpoints, and the sampling function. Exit codes: 0 no errors were
    found, 1 errors were found, which are listed, 3 the log is missing or damaged.
    """
    import json

    from paceline.checkpoint.storage import open_storage
    from paceline.coordinator.audit_input import audit_run, report_json, report_lines
    from paceline.errors import UsageError
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    path = where.path
    if not where.log_file.is_file() and not where.token_file.is_file():
        raise UsageError(f"{path} is not a run directory (no {where.log_file.name} in it)")
    report, passed_over = audit_run(where.log_file, open_storage(where.checkpoints))
    if json_file is not None:
        text = json.dumps(report_json(report, passed_over, str(path)), indent=2)
        if json_file == "-":
            click.echo(text)
            sys.exit(0 if report.ok else 1)
        try:
            Path(json_file).write_text(text + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {json_file}: {error.strerror}") from None
    if report.ok and not report.counts.commits:
        click.echo(f"audit: {path} has no commits yet: there is nothing to check")
        return
    first, *rest = report_lines(report, passed_over)
    click.echo(f"audit: {'clean' if report.ok else 'NOT CLEAN'}: {first}")
    for line in rest:
        click.echo(line)
    sys.exit(0 if report.ok else 1)
