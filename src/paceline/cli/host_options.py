"""The options of ``paceline run`` for several hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.engines.host_options import HostOptions

_OPTIONS = (
    click.option("--engine", type=click.Choice(["local", "hosts"]), help="Who carries the roles.  [default: local]"),
    click.option("--listen", metavar="ADDR:PORT", help="Where agents find this run."),
    click.option("--token-file", type=click.Path(path_type=Path), help="The token that agents prove."),
    click.option("--hosts", "ssh", metavar="A,B,…", help="Start the agents there, by ssh."),
    click.option("--min-hosts", type=int, metavar="N", help="Begin with N hosts.  [default: 1, or replicas + 1]"),
    click.option("--local-roles", is_flag=True, default=None, help="This machine carries roles, too."),
    click.option("--shared-dir", is_flag=True, default=None, help="Every host sees the paths of this machine."),
    click.option("--same-cpu", is_flag=True, default=None, help="Refuse hosts with another kind of CPU."),
    click.option("--insecure-blocks", is_flag=True, default=None, help="Do not encrypt gradients and weights."),
)
_FIELDS = ("listen", "ssh", "min_hosts", "local_roles", "shared_dir", "same_cpu", "insecure_blocks")


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for several hosts to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_host_options(given: dict[str, Any], kept: HostOptions | None) -> dict[str, Any]:
    """Put the options for hosts in `given` into one value, `hosts`; `kept` are those of a run that goes on.

    Raises:
        UsageError: an option does not fit the engine, or a value is not allowed.
    """
    from paceline.engines.host_options import HostOptions
    from paceline.errors import UsageError

    engine = given.pop("engine", None) or ("local" if kept is None else "hosts")
    chosen = {name: given.pop(name) for name in _FIELDS if name in given}
    if isinstance(chosen.get("ssh"), str):
        chosen["ssh"] = tuple(host for host in chosen["ssh"].split(",") if host)
    workers, servers = _numbers(given)
    if engine == "local" and (chosen or workers or servers or "token_file" in given):
        named = next(iter([*chosen, *("workers" if workers else "servers" if servers else "token_file",)]))
        option = named.replace("_", "-").replace("ssh", "hosts")
        raise UsageError(f"--{option}: this is for runs on several hosts; add --engine hosts, or leave it out")
    if engine == "local":
        return given if kept is None else {**given, "hosts": None}
    chosen |= {"auto_workers": workers, "servers_per_host": servers} if kept is None or workers or servers else {}
    if kept is not None:
        return {**given, "hosts": replace(kept, **chosen)}
    if "listen" not in chosen:
        raise UsageError("--engine hosts: give --listen ADDR:PORT, an address of this machine that the hosts can reach")
    if "token_file" not in given and "ssh" not in chosen:
        raise UsageError("--engine hosts: give --token-file FILE (`paceline token FILE` makes one)")
    chosen.setdefault("min_hosts", max(1, given.get("replicas", 0) + 1, len(chosen.get("ssh", ()))))
    return {**given, "hosts": HostOptions(**chosen)}


def _numbers(given: dict[str, Any]) -> tuple[bool, bool]:
    """Whether ``-w auto`` and ``-s per-host`` are given; turns the numbers into numbers.

    Raises:
        UsageError: an option has another word.
    """
    from paceline.errors import UsageError

    found = []
    for name, word in (("workers", "auto"), ("servers", "per-host")):
        text = given.get(name)
        if text == word:
            given[name] = 1 if name == "workers" else max(1, given.get("replicas", 0) + 1)
        elif text is not None:
            try:
                given[name] = int(text)
            except ValueError:
                raise UsageError(f"--{name} must be a whole number, or {word} with --engine hosts: {text!r}") from None
        found.append(text == word)
    return found[0], found[1]
