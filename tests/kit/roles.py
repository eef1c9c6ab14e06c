"""Configurations of roles, as an engine makes them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from paceline.config.load import worker_spec
from paceline.config.role_spec import RoleSpec, SharedSpec
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import hand_over


def run_in(folder: Path) -> RunDir:
    """A directory for logs and configurations; it has no token."""
    run = RunDir(folder)
    run.logs.mkdir(parents=True, exist_ok=True)
    return run


def worker(
    run: RunDir, script: Path, *arguments: str, name: str = "worker-0", start: int = 1, **values: Any
) -> RoleSpec:
    """Return the configuration of a worker that runs `script`; the environment gives what `values` leaves out."""
    told = msgspec.structs.replace(worker_spec(), script=str(script), arguments=arguments, **values)
    settings = msgspec.Raw(msgspec.json.encode(told))
    return RoleSpec(role="worker", name=name, start=start, shared=SharedSpec(run=str(run.path)), settings=settings)


def command(run: RunDir, spec: RoleSpec) -> list[str]:
    """The command line of a role's process, as a child of this one."""
    file = hand_over(run, spec)
    return [sys.executable, "-m", "paceline.runtime.role_process", str(os.getpid()), spec.name, str(file)]
