"""The roles of a run, one file a role, and the registry in which the engine and the role's process find them.

Nothing here imports torch: a role imports what it needs when it runs.
"""

from __future__ import annotations

from paceline.errors import UsageError
from paceline.runtime.roles.base import HangRule, Launch, Role
from paceline.runtime.roles.coordinator import CoordinatorRole
from paceline.runtime.roles.server import ServerRole
from paceline.runtime.roles.worker import WorkerRole

__all__ = [
    "COORDINATOR", "SERVER", "WORKER", "HangRule", "Launch", "Role", "register", "registered", "role_named", "role_of",
]  # fmt: skip

COORDINATOR, SERVER, WORKER = CoordinatorRole(), ServerRole(), WorkerRole()

_roles: dict[str, Role] = {}


def register(role: Role) -> None:
    """From now on `role` is found by its name.

    Raises:
        UsageError: there is another role of that name, or the name has a dash, which ends a role's name.
    """
    if "-" in role.name or _roles.get(role.name, role) is not role:
        raise UsageError(f"a role cannot be called {role.name!r}: the name is taken or has a dash")
    _roles[role.name] = role


def registered() -> tuple[Role, ...]:
    """Every role, in the order of registration."""
    return tuple(_roles.values())


def role_named(name: str) -> Role:
    """The role of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in _roles:
        raise UsageError(f"role {name!r} is not known; there are {', '.join(_roles)}")
    return _roles[name]


def role_of(process: str) -> Role:
    """The role of a process by its name, such as ``worker-3``."""
    return role_named(process.partition("-")[0])


for _role in (COORDINATOR, SERVER, WORKER):
    register(_role)
