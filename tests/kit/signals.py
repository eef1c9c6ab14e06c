"""Wait until a process is ready for a signal: before, the signal would end it as it ends any process."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path


def until_it_handles(pid: int, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60.0) -> None:
    """Wait until the process has a handler of its own for a signal."""
    deadline = time.monotonic() + timeout_s
    while not _handles(pid, number):
        assert time.monotonic() < deadline, f"process {pid} never handled {number.name}"
        time.sleep(0.01)


def _handles(pid: int, number: signal.Signals) -> bool:
    found = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) >> (number - 1) & 1)
