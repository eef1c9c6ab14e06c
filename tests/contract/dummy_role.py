"""A role in one new file: it greets, and ends when it is told to."""

from __future__ import annotations

import signal
import sys

import msgspec

from paceline.config.role_spec import RoleSpec
from paceline.runtime.roles import Launch, Role


class GreeterSpec(msgspec.Struct, frozen=True):
    """What the role is told."""

    greeting: str


class GreeterRole(Role):
    """Does without torch; exit code 7 is a death."""

    name = "greeter"
    light = True
    deaths = frozenset({7})

    def settings(self, launch: Launch) -> GreeterSpec:
        return GreeterSpec(f"hello from {launch.shared.label}")

    def run(self, spec: RoleSpec) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        sys.stdout.write(f"{spec.read(GreeterSpec).greeting}: {spec.name}, start {spec.start}\n")
        sys.stdout.flush()
        signal.sigwait([signal.SIGTERM])
        return 7
