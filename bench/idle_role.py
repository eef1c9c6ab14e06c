"""A role without torch, for `scale.py`: it prints a line, and ends when it gets SIGTERM."""

from __future__ import annotations

import signal
import sys

from paceline.config.role_spec import RoleSpec
from paceline.runtime.roles import Role


class IdleRole(Role):
    """A process that only waits."""

    name = "idle"
    light = True

    def run(self, spec: RoleSpec) -> int:
        """Print a line and wait for SIGTERM."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        sys.stdout.write(f"{spec.name} is there\n")
        sys.stdout.flush()
        signal.sigwait([signal.SIGTERM])
        return 0
