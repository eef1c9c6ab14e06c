"""``paceline doctor``."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("doctor")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Also prove this token there.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(address: str | None, token_file: Path | None, as_json: bool) -> None:
    """Check whether this machine can be a host, and whether it reaches the supervisor at HOST:PORT.

    Each line is ok, a warning or a problem, with what to do. Nothing is changed, and a run is not disturbed. Exit
    codes: 0 no problem, 1 a problem, 2 usage.
    """
    from paceline.cli.addresses import resolved
    from paceline.config.load import cache_dir
    from paceline.core.hosts.checkup import Level
    from paceline.engines.doctor import examine
    from paceline.errors import UsageError
    from paceline.runtime.rundir import read_token

    if token_file is not None and address is None:
        raise UsageError("--token-file: give HOST:PORT, too: the token is compared with that of the supervisor there")
    supervisor = None if address is None else resolved(address)
    token = None if token_file is None else read_token(token_file)
    findings = []
    for finding in examine(supervisor, token, cache_dir() / "agents"):
        findings.append(finding)
        if not as_json:
            do = f"\n{'':22}do: {finding.do}" if finding.do else ""
            click.echo(f"{finding.level:8} {finding.what:11}  {finding.text}{do}")
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    sys.exit(int(any(finding.level is Level.PROBLEM for finding in findings)))
