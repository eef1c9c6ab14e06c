"""What a role is to the engine and to its own process. A new role is a new `Role` class and its registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any

from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import RoleSpec, ServerSpec, SharedSpec, WorkerSpec
from paceline.runtime.exit_codes import EXIT_DONE


class HangRule(Enum):
    """How the engine sees that a live process of the role hangs."""

    ENGINE = "it does not answer the engine"
    COORDINATOR = "the coordinator answers, and does not name it as a member"
    NEVER = "it never hangs: it may compute for any time"


class Launch:
    """Everything that a launch knows, for the settings of any role. `cluster` is what the coordinator is told."""

    __slots__ = ("cluster", "server", "shared", "worker")

    def __init__(self, shared: SharedSpec, cluster: ClusterSpec, server: ServerSpec, worker: WorkerSpec) -> None:
        self.shared = shared
        self.cluster = cluster
        self.server = server
        self.worker = worker


class Role(ABC):
    """One kind of process. Engine and runtime ask it, and never compare its name.

    Its processes are called ``NAME-0``, ``NAME-1`` …; with `single` there is one, called ``NAME``.
    """

    name: str
    single = False
    light = False
    """The process does without torch: it is not forked from a process that has loaded torch."""

    scripted = False
    """The process runs the user's script: in the user's directory, with torch as training needs it."""

    hang_rule = HangRule.COORDINATOR
    reported = True
    """The coordinator is told of the end of such a process."""

    deaths: frozenset[int] = frozenset({EXIT_DONE})
    """Exit codes that are a death, as every signal is: the process is started again, and that is counted."""

    restarts_itself: frozenset[int] = frozenset()
    """Exit codes by which the process asks for another start, which is not counted."""

    def process_name(self, number: int) -> str:
        """What process `number` of the role is called."""
        return self.name if self.single else f"{self.name}-{number}"

    def settings(self, launch: Launch) -> Any:
        """What its process is told besides what every role is told. `run` reads it with `RoleSpec.read`."""
        return {}

    def environment(self, spec: RoleSpec) -> Mapping[str, str]:
        """Variables of its process that libraries or the user's script read. They do not configure the role."""
        return {}

    @abstractmethod
    def run(self, spec: RoleSpec) -> int:
        """Be a process of the role, from its start to its end. Returns the exit code."""
