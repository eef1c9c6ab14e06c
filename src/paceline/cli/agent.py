"""``paceline agent``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.log_options import log_options


@click.command("agent")
@click.argument("address", metavar="HOST:PORT")
@click.option("--token-file", required=True, metavar="FILE", help="The run's token; - reads it from standard input.")
@click.option("--name", help="The name of this host.  [default: its host name]")
@click.option("--address", "own", metavar="IP", help="Where other hosts reach this one.  [default: found]")
@click.option("--cores", type=int, metavar="N", help="How many cores it offers.  [default: all that it may use]")
@click.option("--label", "labels", multiple=True, help="A word about this host, such as gpu; may be repeated.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Where files are kept.  [default: cache]")
@click.option("--parent", type=int, metavar="PID", help="End when this process, which starts the agent, has ended.")
@log_options
def command(
    address: str,
    token_file: str,
    name: str | None,
    own: str | None,
    cores: int | None,
    labels: tuple[str, ...],
    folder: Path | None,
    parent: int | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Offer this machine to the run whose supervisor listens at HOST:PORT; before or after that run is started.

    The agent starts and ends the roles that the supervisor places here, and ends with the run. After the first SIGTERM
    or Ctrl-C its roles move to other hosts, and then it ends; after the second it ends at once. Exit codes: 0 the run
    has ended or the host has left, 2 usage or turned away, 3 the supervisor is lost.
    """
    from paceline.cli.addresses import resolved
    from paceline.config.load import cache_dir
    from paceline.engines.agent import Agent
    from paceline.engines.host_facts import host_facts
    from paceline.errors import UsageError
    from paceline.runtime.rundir import read_token
    from paceline.telemetry import logs
    from paceline.wire.token import check_token

    logs.set_up(log_level or "warning", log_format or "text", process="agent")
    host, port = resolved(address)
    if cores is not None and cores < 1:
        raise UsageError(f"--cores must be at least 1, not {cores}")
    if token_file == "-":
        try:
            token = check_token(bytes.fromhex(sys.stdin.readline().strip()))
        except ValueError:
            raise UsageError("--token-file -: standard input has no token; `paceline token FILE` makes one") from None
    else:
        token = read_token(Path(token_file))
    facts = host_facts(host, name=name, address=own, cores=cores, labels=labels)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def say(text: str) -> None:
        click.echo(f"paceline: {text}", err=True)

    sys.exit(Agent(where, token, facts, say, folder or cache_dir() / "agents", parent).run())
