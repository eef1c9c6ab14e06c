"""The only reader of the environment. docs/reference.md lists every variable."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.config.dials import parse_mode
from paceline.errors import UsageError

RUN = "PACELINE_RUN"
NAME = "PACELINE_NAME"
SEED = "PACELINE_SEED"
MODE = "PACELINE_MODE"
SLOTS = "PACELINE_SLOTS"
THREADS = "PACELINE_THREADS"
TIMEOUT_S = "PACELINE_TIMEOUT_S"
CACHE = "PACELINE_CACHE"
HEARTBEAT_TIMEOUT_S = "PACELINE_HEARTBEAT_TIMEOUT_S"
REACH_S = "PACELINE_REACH_S"
FAULTS = "PACELINE_FAULTS"
OVERLAP = "PACELINE_OVERLAP"
LOCAL_WORKERS = "PACELINE_LOCAL_WORKERS"
TRACE = "PACELINE_TRACE"
LANE = "PACELINE_LANE"
HOST = "PACELINE_HOST"
VIA = "PACELINE_VIA"
FORK = "PACELINE_FORK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnv:
    """What the environment says to a script that calls `join`. `run` is None outside of `paceline run`.

    `overlap` says whether gradients are sent while backward runs, None leaves it to the rule. `local_workers` is how
    many workers the run was started with on this host.
    """

    run: Path | None = None
    name: str = "worker-0"
    seed: int | None = None
    mode: str | None = None
    slots: int | None = None
    threads: int = 1
    timeout_s: float = 30.0
    faults: str | None = None
    overlap: bool | None = None
    local_workers: int = 1

    def __post_init__(self) -> None:
        if self.mode is not None:
            parse_mode(self.mode)
        if self.slots is not None and self.slots < 1:
            raise UsageError(f"slots must be at least 1, not {self.slots}")
        if self.threads < 1:
            raise UsageError(f"{THREADS} must be at least 1, not {self.threads}")
        if self.timeout_s <= 0:
            raise UsageError(f"{TIMEOUT_S} must be positive, not {self.timeout_s}")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {text!r}") from None


def _switch(env: Mapping[str, str], name: str) -> bool | None:
    text = env.get(name) or ""
    if text not in ("", "0", "1"):
        raise UsageError(f"{name} must be 0 or 1, not {text!r}")
    return text == "1" if text else None


def worker_env(env: Mapping[str, str] | None = None) -> WorkerEnv:
    """Read the worker's settings from `env` (the process's environment unless given).

    Raises:
        UsageError: a variable has a value that makes no sense; the message names it.
    """
    env = os.environ if env is None else env
    return WorkerEnv(
        run=Path(env[RUN]) if env.get(RUN) else None,
        name=role_name(env),
        seed=_number(env, SEED),
        mode=env.get(MODE) or None,
        slots=_number(env, SLOTS),
        threads=1 if (threads := _number(env, THREADS)) is None else threads,
        timeout_s=timeout_s(env),
        faults=env.get(FAULTS) or None,
        overlap=_switch(env, OVERLAP),
        local_workers=_number(env, LOCAL_WORKERS) or 1,
    )


def timeout_s(env: Mapping[str, str] | None = None) -> float:
    """How long a role waits for an answer before it fails by name.

    Raises:
        UsageError: it is not a positive number.
    """
    seconds = _seconds(env, TIMEOUT_S, "30")
    if not seconds > 0:
        raise UsageError(f"{TIMEOUT_S} must be positive, not {seconds:g}")
    return seconds


def heartbeat_timeout_s(env: Mapping[str, str] | None = None) -> float:
    """How long a role may be silent before it counts as lost."""
    return _seconds(env, HEARTBEAT_TIMEOUT_S, "10")


def reach_s(env: Mapping[str, str] | None = None) -> float:
    """How long a peer may leave others without an answer before they say so."""
    return _seconds(env, REACH_S, "3")


def _seconds(env: Mapping[str, str] | None, name: str, default: str) -> float:
    text = (os.environ if env is None else env).get(name) or default
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number of seconds, not {text!r}") from None


def role_name(env: Mapping[str, str] | None = None) -> str:
    """What this process is called in its run."""
    env = os.environ if env is None else env
    return env.get(NAME) or "worker-0"


def trace_dir(env: Mapping[str, str] | None = None) -> Path | None:
    """Where this process records what it does, None for nowhere."""
    env = os.environ if env is None else env
    return Path(env[TRACE]) if env.get(TRACE) else None


def local_lane(env: Mapping[str, str] | None = None) -> bool:
    """Whether processes of one host may pass the network by: ``tcp`` forbids it, ``auto`` is the default."""
    env = os.environ if env is None else env
    lane = env.get(LANE) or "auto"
    if lane not in ("auto", "tcp"):
        raise UsageError(f"{LANE} must be auto or tcp, not {lane!r}")
    return lane == "auto"


def host(env: Mapping[str, str] | None = None) -> str:
    """Where a role of this host listens: an address, or a network in which the host has one."""
    env = os.environ if env is None else env
    text = env.get(HOST) or "127.0.0.1"
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise UsageError(f"{HOST} must be an IP address or a network such as 10.1.0.0/16, not {text!r}") from None
    return text


def via(name: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The command that starts the process of role `name`, before its own: ``{name}`` in it is that name."""
    env = os.environ if env is None else env
    return [word.replace("{name}", name) for word in shlex.split(env.get(VIA) or "")]


def forking(env: Mapping[str, str] | None = None) -> bool:
    """Whether roles may be forked from a process that has loaded torch: 0 forbids it."""
    return _switch(os.environ if env is None else env, FORK) is not False


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """Where data sets are kept: $PACELINE_CACHE, or ~/.cache/paceline."""
    env = os.environ if env is None else env
    return Path(env[CACHE]) if env.get(CACHE) else Path.home() / ".cache" / "paceline"


def child_env(changes: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child process: this one's, over `defaults` and under `changes`."""
    return {**(defaults or {}), **os.environ, **changes}


def passed_on(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a worker that joins from another terminal needs of the environment in which the run was started."""
    env = os.environ if env is None else env
    return {name: env[name] for name in (TIMEOUT_S, CACHE) if env.get(name)}
