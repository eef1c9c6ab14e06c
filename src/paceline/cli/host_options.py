"""The options of ``paceline run`` for several hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

_OPTIONS = (
    click.option("--engine", metavar="local|hosts|ray|spark", help="Who carries the roles.  [default: local]"),
    click.option("--ray-address", metavar="ADDR", help="The Ray cluster.  [default: auto]"),
    click.option("--master", metavar="URL", help="The Spark cluster.  [default: the session's, or a local one]"),
    click.option("--listen", metavar="ADDR:PORT", help="Where agents find this run."),
    click.option("--token-file", type=click.Path(path_type=Path), help="The token that agents prove."),
    click.option("--hosts", metavar="A,B,…", help="Start the agents there, by ssh."),
    click.option("--min-hosts", type=int, metavar="N", help="Begin with N hosts.  [default: 1, or replicas + 1]"),
    click.option("--local-roles", is_flag=True, default=None, help="This machine carries roles, too."),
    click.option("--shared-dir", is_flag=True, default=None, help="Every host sees the paths of this machine."),
    click.option("--same-cpu", is_flag=True, default=None, help="Refuse hosts with another kind of CPU."),
    click.option("--insecure-blocks", is_flag=True, default=None, help="Do not encrypt gradients and weights."),
)


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for several hosts to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
