"""The roles of a run, one file per role, and the registry in which engines and processes find a role by its name.

Nothing here imports torch: a role imports what it needs when it runs.
"""

from __future__ import annotations

import re

from paceline.errors import UsageError
from paceline.runtime.roles.base import HangRule, Launch, Role
from paceline.runtime.roles.coordinator import CoordinatorRole
from paceline.runtime.roles.sampler import SamplerRole
from paceline.runtime.roles.server import ServerRole
from paceline.runtime.roles.worker import WorkerRole

__all__ = [
    "COORDINATOR", "SAMPLER", "SERVER", "WORKER", "HangRule", "Launch", "Role", "is_process_name", "register",
    "registered", "role_named", "role_of",
]  # fmt: skip

COORDINATOR, SERVER, WORKER, SAMPLER = CoordinatorRole(), ServerRole(), WorkerRole(), SamplerRole()

_roles: dict[str, Role] = {}
_PROCESS_NAME = re.compile(r"(?P<role>\w{1,64})(-(?P<number>[a-z0-9]{1,16}))?", re.ASCII)


def register(role: Role) -> None:
    """Add `role` to the registry.

    Raises:
        UsageError: another role has that name, or the name has a dash: ``worker-3`` is process 3 of role ``worker``.
    """
    if "-" in role.name or _roles.get(role.name, role) is not role:
        raise UsageError(f"a role cannot have the name {role.name!r}: another role has it, or it contains a dash")
    _roles[role.name] = role


def registered() -> tuple[Role, ...]:
    """All roles, in the order of registration."""
    return tuple(_roles.values())


def role_named(name: str) -> Role:
    """Return the role of that name.

    Raises:
        UsageError: no role has that name.
    """
    if name not in _roles:
        raise UsageError(f"role {name!r} is not known; the roles are {', '.join(_roles)}")
    return _roles[name]


def role_of(process: str) -> Role:
    """Return the role of a process by the name of the process, such as ``worker-3``."""
    return role_named(process.partition("-")[0])


def is_process_name(text: str) -> bool:
    """Whether a process of a run can have this name. It is then also the name of a file."""
    found = _PROCESS_NAME.fullmatch(text)
    role = None if found is None else _roles.get(found["role"])
    return found is not None and role is not None and role.single == (found["number"] is None)


for _role in (COORDINATOR, SERVER, WORKER, SAMPLER):
    register(_role)
