"""The only reader of the environment. docs/reference.md lists every variable.

The launcher reads it once and tells every role by its `RoleSpec`; a script that no engine has started reads it in
`join`.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from paceline.config.role_spec import RoleSpec, SharedSpec, WorkerSpec
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


def worker_spec(env: Mapping[str, str] | None = None) -> WorkerSpec:
    """What `env` (the process's environment unless given) says to a worker.

    Raises:
        UsageError: a variable has a value that makes no sense; the message names it.
    """
    env = os.environ if env is None else env
    return WorkerSpec(
        seed=_number(env, SEED),
        mode=env.get(MODE) or None,
        slots=_number(env, SLOTS),
        threads=1 if (threads := _number(env, THREADS)) is None else threads,
        timeout_s=timeout_s(env),
        faults=env.get(FAULTS) or None,
        overlap=_switch(env, OVERLAP),
        local_workers=_number(env, LOCAL_WORKERS) or 1,
    )


def shared_spec(run: Path, env: Mapping[str, str] | None = None) -> SharedSpec:
    """What the environment says to every role of `run`.

    Raises:
        UsageError: a variable has a value that makes no sense; the message names it.
    """
    trace = trace_dir(env)
    return SharedSpec(run=str(run), host=host(env), local=local_lane(env), trace=None if trace is None else str(trace))


def script_env(spec: RoleSpec, worker: WorkerSpec) -> dict[str, str]:
    """The variables that a worker's script may read: its name, its run, and the dials that go over its own."""
    env = {NAME: spec.name, RUN: spec.shared.run, THREADS: str(worker.threads)}
    env[LOCAL_WORKERS] = str(worker.local_workers)
    for key, value in ((MODE, worker.mode), (SLOTS, worker.slots), (SEED, worker.seed), (TRACE, spec.shared.trace)):
        if value is not None:
            env[key] = str(value)
    return env


def run_dir(env: Mapping[str, str] | None = None) -> Path | None:
    """The run that a script joins by itself, None outside of any run."""
    env = os.environ if env is None else env
    return Path(env[RUN]) if env.get(RUN) else None


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
    """How long a peer may leave another without an answer before the coordinator is told."""
    return _seconds(env, REACH_S, "3")


def _seconds(env: Mapping[str, str] | None, name: str, default: str) -> float:
    text = (os.environ if env is None else env).get(name) or default
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number of seconds, not {text!r}") from None


def role_name(env: Mapping[str, str] | None = None) -> str:
    """The name of a worker that joins by itself."""
    env = os.environ if env is None else env
    return env.get(NAME) or "worker-0"


def trace_dir(env: Mapping[str, str] | None = None) -> Path | None:
    """The folder in which a process records its trace, None for no trace."""
    env = os.environ if env is None else env
    return Path(env[TRACE]) if env.get(TRACE) else None


def local_lane(env: Mapping[str, str] | None = None) -> bool:
    """Whether processes of one host may use shared memory: ``tcp`` forbids it, ``auto`` is the default."""
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
    """The words before the command of process `name`; ``{name}`` in them is that name."""
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
    """The variables of the launcher that a worker needs which joins from another terminal."""
    env = os.environ if env is None else env
    return {name: env[name] for name in (TIMEOUT_S, CACHE) if env.get(name)}
