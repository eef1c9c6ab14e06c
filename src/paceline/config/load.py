"""The only reader of the environment. docs/reference.md lists every variable.

The launcher reads the environment once and passes the values to every role in its `RoleSpec`. A script that no launcher
has started reads it in `join`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from paceline.config import live
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
FORK = "PACELINE_FORK"
SSH = "PACELINE_SSH"
REMOTE = "PACELINE_REMOTE"
SAMPLER_MIB = "PACELINE_SAMPLER_MIB"


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
    """The settings of a worker in `env`, by default the environment of this process.

    Raises:
        UsageError: a variable has a value that is not allowed; the message names it.
    """
    env = os.environ if env is None else env
    return WorkerSpec(
        seed=_number(env, SEED),
        mode=env.get(MODE) or None,
        slots=None if env.get(SLOTS) == live.AUTO else _number(env, SLOTS),
        slots_auto=env.get(SLOTS) == live.AUTO,
        threads=1 if (threads := _number(env, THREADS)) is None else threads,
        timeout_s=timeout_s(env),
        faults=env.get(FAULTS) or None,
        overlap=_switch(env, OVERLAP),
        local_workers=_number(env, LOCAL_WORKERS) or 1,
        sampler_mib=512 if (mib := _number(env, SAMPLER_MIB)) is None else mib,
    )


def shared_spec(run: Path, env: Mapping[str, str] | None = None) -> SharedSpec:
    """The settings in the environment that every role of `run` gets.

    Raises:
        UsageError: a variable has a value that is not allowed; the message names it.
    """
    trace = trace_dir(env)
    return SharedSpec(run=str(run), host=host(env), local=local_lane(env), trace=None if trace is None else str(trace))


def script_env(spec: RoleSpec, worker: WorkerSpec) -> dict[str, str]:
    """The variables that a worker's script may read: its name, its run, and the dials that override its own."""
    env = {NAME: spec.name, RUN: spec.shared.run, THREADS: str(worker.threads)}
    env[LOCAL_WORKERS] = str(worker.local_workers)
    slots = live.AUTO if worker.slots_auto else worker.slots
    for key, value in ((MODE, worker.mode), (SLOTS, slots), (SEED, worker.seed), (TRACE, spec.shared.trace)):
        if value is not None:
            env[key] = str(value)
    return env


def run_dir(env: Mapping[str, str] | None = None) -> Path | None:
    """The run directory that a script joins when no launcher started it; None if PACELINE_RUN is not set."""
    env = os.environ if env is None else env
    return Path(env[RUN]) if env.get(RUN) else None


def timeout_s(env: Mapping[str, str] | None = None) -> float:
    """How many seconds a role waits for an answer before it fails with a DeadlineError.

    Raises:
        UsageError: PACELINE_TIMEOUT_S is not a positive number.
    """
    seconds = _seconds(env, TIMEOUT_S, "30")
    if not seconds > 0:
        raise UsageError(f"{TIMEOUT_S} must be positive, not {seconds:g}")
    return seconds


def heartbeat_timeout_s(env: Mapping[str, str] | None = None) -> float:
    """How many seconds a role may send no heartbeat before the coordinator counts it as lost."""
    return _seconds(env, HEARTBEAT_TIMEOUT_S, "10")


def reach_s(env: Mapping[str, str] | None = None) -> float:
    """How many seconds a role waits for a peer's answer before it reports the peer to the coordinator."""
    return _seconds(env, REACH_S, "3")


def _seconds(env: Mapping[str, str] | None, name: str, default: str) -> float:
    text = (os.environ if env is None else env).get(name) or default
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number of seconds, not {text!r}") from None


def role_name(env: Mapping[str, str] | None = None) -> str:
    """The name of a worker that no launcher started."""
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
    """The address at which roles of this host listen, or a network in which this host has an address."""
    env = os.environ if env is None else env
    text = env.get(HOST) or "127.0.0.1"
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise UsageError(f"{HOST} must be an IP address or a network such as 10.1.0.0/16, not {text!r}") from None
    return text


def forking(env: Mapping[str, str] | None = None) -> bool:
    """Whether roles may be forked from a process that has loaded torch; PACELINE_FORK=0 forbids it."""
    return _switch(os.environ if env is None else env, FORK) is not False


def ssh_command(env: Mapping[str, str] | None = None) -> str:
    """The command, with options, that reaches another machine: $PACELINE_SSH, or ssh without questions."""
    return (os.environ if env is None else env).get(SSH) or "ssh -o BatchMode=yes"


def remote_paceline(env: Mapping[str, str] | None = None) -> str:
    """The command ``paceline`` on machines that are reached by ssh: $PACELINE_REMOTE, or paceline."""
    return (os.environ if env is None else env).get(REMOTE) or "paceline"


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """Where data sets are kept: $PACELINE_CACHE, or ~/.cache/paceline."""
    env = os.environ if env is None else env
    return Path(env[CACHE]) if env.get(CACHE) else Path.home() / ".cache" / "paceline"


def child_env(changes: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child process: `changes` override this process's environment, which overrides `defaults`."""
    return {**(defaults or {}), **os.environ, **changes}


def passed_on(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of the launcher's environment that a worker needs when it joins from another terminal."""
    env = os.environ if env is None else env
    return {name: env[name] for name in (TIMEOUT_S, CACHE) if env.get(name)}
