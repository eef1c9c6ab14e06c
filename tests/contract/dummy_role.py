"""A dummy role in one new file: it prints a greeting, and ends when it gets SIGTERM."""

from __future__ import annotations

import signal
import sys

import msgspec

from paceline.config.role_spec import RoleSpec
from paceline.runtime.roles import Launch, Role


class GreeterSpec(msgspec.Struct, frozen=True):
    """The settings of the role."""

    greeting: str


class GreeterRole(Role):
    """A role that does not need torch and that is restarted after exit code 7."""

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
