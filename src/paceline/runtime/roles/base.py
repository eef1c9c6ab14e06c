"""The base class of roles: what engines and processes need to know. A new role is a new class that is registered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any

from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import RoleSpec, ServerSpec, SharedSpec, WorkerSpec
from paceline.runtime.exit_codes import EXIT_DONE


class HangRule(Enum):
    """By what the engine recognises that a live process of the role hangs."""

    ENGINE = "it does not answer the engine"
    COORDINATOR = "the coordinator answers, and does not list it as a member"
    NEVER = "it never hangs: it may compute for any time"


class Launch:
    """The configuration of a whole run, from which each role takes its settings. `cluster` is for the coordinator."""

    __slots__ = ("cluster", "server", "shared", "worker")

    def __init__(self, shared: SharedSpec, cluster: ClusterSpec, server: ServerSpec, worker: WorkerSpec) -> None:
        self.shared = shared
        self.cluster = cluster
        self.server = server
        self.worker = worker


class Role(ABC):
    """One kind of process. Engine and runtime read these attributes; they never compare the name of a role.

    Its processes have the names ``NAME-0``, ``NAME-1`` …; with `single` there is one process, ``NAME``.
    """

    name: str
    single = False
    light = False
    """The process does not need torch: it does not wait for a fork server that still loads torch."""

    scripted = False
    """The process runs the user's script, in the user's directory."""

    repeats = False
    """The process is of use even while it only computes steps again that a rewind has undone."""

    hang_rule = HangRule.COORDINATOR
    reported = True
    """The engine tells the coordinator when such a process has ended."""

    deaths: frozenset[int] = frozenset({EXIT_DONE})
    """Exit codes that count as a death, as every signal does: the process is restarted, and the restart is counted."""

    restarts_itself: frozenset[int] = frozenset()
    """Exit codes by which a process asks for a restart, which is not counted."""

    def process_name(self, number: int) -> str:
        """The name of process `number` of the role."""
        return self.name if self.single else f"{self.name}-{number}"

    def settings(self, launch: Launch) -> Any:
        """The settings of this role alone, from the configuration of the run. `run` reads them with `RoleSpec.read`."""
        return {}

    def environment(self, spec: RoleSpec) -> Mapping[str, str]:
        """Environment variables for libraries or the user's script. They do not configure the role."""
        return {}

    @abstractmethod
    def run(self, spec: RoleSpec) -> int:
        """Do the work of one process of the role, from its start to its end. Returns the exit code."""
