"""The numbers of starts: each start of a name in a run gets the next one, whichever process starts it."""

from __future__ import annotations

import fcntl
import json
import os

from paceline.runtime.rundir import RunDir, replace_file


def next_start(run: RunDir, name: str) -> int:
    """The number of the next start of `name`, counted from 1. No other start of `name` in this run ever gets it.

    The counters are in the run directory under a lock: launchers, resumed ones and joiners share them.
    """
    lock = os.open(run.path / "starts.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = run.path / "starts.json"
        counters: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        counters[name] = counters.get(name, 0) + 1
        replace_file(file, json.dumps(counters))
        return counters[name]
    finally:
        os.close(lock)
