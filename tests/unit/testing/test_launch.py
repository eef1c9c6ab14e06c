"""Processes that a launcher started."""

from __future__ import annotations

import subprocess
import sys
import time

from paceline.testing.launch import started_by


def test_a_role_is_found_by_the_pid_of_its_launcher() -> None:
    """The command line of a role names its launcher, also after the launcher has ended."""
    script = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, "paceline.runtime.role_process", "987654321"]) as role:
        try:
            deadline = time.monotonic() + 10
            while not (found := started_by(987654321)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert [process.pid for process in found] == [role.pid]
            assert started_by(98765432) == []
        finally:
            role.kill()
