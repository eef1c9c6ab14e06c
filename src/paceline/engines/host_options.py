"""The options of a run on several hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import UsageError

DEFAULT_PORT = 7411
HOSTS, RAY, SPARK = "hosts", "ray", "spark"
ENGINES = (HOSTS, RAY, SPARK)
"""Who can bring the agents of a run on several hosts."""
LOCAL_HOST = "supervisor"
"""The name of the supervisor's own host."""

_ADDRESSES = {"ray_address": RAY, "master": SPARK}
_FIELDS = ("listen", "ssh", "min_hosts", "local_roles", "shared_dir", "same_cpu", "insecure_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How a run uses hosts. The supervisor accepts agents at `listen`, which is ADDRESS:PORT.

    `engine` says who brings the agents: the user or ssh (``hosts``), or the cluster at `engine_address`. An engine that
    knows an address of this machine needs no `listen`.

    The roles start when `min_hosts` hosts are there. With `local_roles` the supervisor's machine carries roles, too.
    With `shared_dir` every host sees the paths of this machine; otherwise the script's directory is copied to each
    host. `auto_workers` is one worker for each free core, `servers_per_host` one server on
    each host, `samplers_per_host` one sampler on each host. An agent that has not heard from the supervisor for
    `term_s` seconds ends its roles. `ssh` are the machines on which the launcher starts the agents itself.
    """

    listen: str = ""
    engine: str = HOSTS
    engine_address: str = ""
    min_hosts: int = 1
    local_roles: bool = False
    shared_dir: bool = False
    auto_workers: bool = False
    servers_per_host: bool = False
    samplers_per_host: bool = False
    same_cpu: bool = False
    insecure_blocks: bool = False
    term_s: float = 30.0
    ssh: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.address  # noqa: B018
        if self.min_hosts < 1:
            raise UsageError(f"--min-hosts must be at least 1, not {self.min_hosts}")

    @property
    def address(self) -> tuple[str, int] | None:
        """The IP address and the port at which the supervisor listens; None if the engine chooses them.

        Raises:
            UsageError: `listen` does not have the form ADDRESS:PORT, or is a wildcard.
        """
        return parse_address(self.listen, "--listen") if self.listen or self.engine == HOSTS else None

    @property
    def unlimited(self) -> bool:
        """Whether the run has a use for every further host."""
        return self.auto_workers or self.servers_per_host or self.samplers_per_host


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Read ADDRESS:PORT or [ADDRESS]:PORT; without a port it is 7411.

    Raises:
        UsageError: it has another form, or the address is a wildcard; the message names the `option`.
    """
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    host = (host or port).strip("[]")
    try:
        address = ipaddress.ip_address(host)
        number = int(port) if colon else DEFAULT_PORT
    except ValueError:
        raise UsageError(f"{option} must be ADDRESS:PORT, such as 10.0.0.1:{DEFAULT_PORT}, not {text!r}") from None
    if address.is_unspecified or address.is_multicast:
        raise UsageError(f"{option} {text}: give the one address that the other hosts connect to, not a wildcard")
    if not 0 <= number < 1 << 16:
        raise UsageError(f"{option} {text}: a port is a number from 0 to 65535")
    return str(address), number


def take_host_options(given: dict[str, Any], kept: HostOptions | None) -> dict[str, Any]:
    """Put the options for hosts in `given` into one value, `hosts`; `kept` are those of a run that goes on.

    Raises:
        UsageError: an option does not fit the engine, or a value is not allowed.
    """
    engine = given.pop("engine", None) or ("local" if kept is None else kept.engine)
    chosen = {name: given.pop(name) for name in _FIELDS if name in given}
    if isinstance(chosen.get("ssh"), str):
        chosen["ssh"] = tuple(host for host in chosen["ssh"].split(",") if host)
    workers, servers, samplers = _numbers(given)
    used = [*chosen, *(name for name in ("token_file", *_ADDRESSES) if name in given)]
    used += ["workers"] * workers + ["servers"] * servers + ["samplers"] * samplers
    _check_engine(engine, used)
    if engine == "local":
        return given if kept is None else {**given, "hosts": None}
    for name in _ADDRESSES:
        if name in given:
            chosen["engine_address"] = given.pop(name)
    chosen |= {"auto_workers": workers, "servers_per_host": servers} if kept is None or workers or servers else {}
    if kept is None or samplers or "samplers" in given:
        chosen["samplers_per_host"] = samplers
    if kept is not None and kept.engine == engine:
        return {**given, "hosts": replace(kept, **chosen)}
    if engine == HOSTS and "listen" not in chosen:
        raise UsageError("--engine hosts: give --listen ADDR:PORT, an address of this machine that the hosts can reach")
    if engine == HOSTS and "token_file" not in given and "ssh" not in chosen:
        raise UsageError("--engine hosts: give --token-file FILE (`paceline token FILE` makes one)")
    chosen.setdefault("min_hosts", max(1, given.get("replicas", 0) + 1, len(chosen.get("ssh", ()))))
    return {**given, "hosts": HostOptions(engine=engine, **chosen)}


def _check_engine(engine: str, used: Sequence[str]) -> None:
    """Check that an engine exists and has the options that are `used`.

    Raises:
        UsageError: it does not.
    """
    engines = ("local", *ENGINES)
    if engine not in engines:
        raise UsageError(f"--engine must be one of {', '.join(engines)}, not {engine!r}")
    for name in used:
        option = "--" + name.replace("_", "-").replace("ssh", "hosts")
        only = _ADDRESSES.get(name, HOSTS)
        if engine == "local":
            raise UsageError(f"{option}: this is for runs on several hosts; add --engine {only}, or leave it out")
        if engine != only and name in ("ssh", "token_file", *_ADDRESSES):
            raise UsageError(f"{option}: this is for --engine {only}, not for {engine}; leave it out")


def _numbers(given: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Whether ``-w auto``, ``-s per-host`` and ``--samplers per-host`` are given; turns the numbers into numbers.

    Raises:
        UsageError: an option has another word.
    """
    found = []
    for name, word in (("workers", "auto"), ("servers", "per-host"), ("samplers", "per-host")):
        text = given.get(name)
        if text == word:
            given[name] = max(1, given.get("replicas", 0) + 1) if name == "servers" else 1
        elif text is not None:
            try:
                given[name] = int(text)
            except ValueError:
                raise UsageError(
                    f"--{name} must be a whole number, or {word} for a run on several hosts: {text!r}"
                ) from None
        found.append(text == word)
    return found[0], found[1], found[2]
