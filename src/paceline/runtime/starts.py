"""Numbers the starts of each process name in a run, makes the identity of a start, and writes its configuration."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from paceline.config.role_spec import RoleSpec, encode_role_spec
from paceline.runtime.rundir import RunDir, replace_file
from paceline.types import NodeId


def next_start(run: RunDir, name: str) -> int:
    """Return the number of the next start of `name`, counted from 1. A number is returned only once in a run.

    The counters are in the run directory, under a lock: `paceline run`, `--resume` and `paceline join` share them.
    """
    lock = os.open(run.path / "starts.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        counters = last_starts(run)
        counters[name] = counters.get(name, 0) + 1
        replace_file(run.path / "starts.json", json.dumps(counters))
        return counters[name]
    finally:
        os.close(lock)


def last_starts(run: RunDir) -> dict[str, int]:
    """The number of the last start of each name in a run."""
    file = run.path / "starts.json"
    counters: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    return counters


def node_id(name: str, start: int) -> NodeId:
    """Make the identity of this process, which no other process of the run ever has. Contains its name and pid."""
    return f"{name}/{start}-{os.getpid()}-{secrets.token_hex(4)}"


def hand_over(run: RunDir, spec: RoleSpec) -> Path:
    """Write the configuration of a start for its process to read, and remove those of earlier starts of its name."""
    run.roles.mkdir(exist_ok=True)
    for old in run.roles.glob(f"{spec.name}.*.json"):
        old.unlink(missing_ok=True)
    file = run.roles.absolute() / f"{spec.name}.{spec.start}.json"
    replace_file(file, encode_role_spec(spec).decode())
    return file
