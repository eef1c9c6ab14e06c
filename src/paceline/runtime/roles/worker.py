"""The role of a worker."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Mapping

from paceline.config import load
from paceline.config.role_spec import RoleSpec, WorkerSpec
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_LOST
from paceline.runtime.roles.base import HangRule, Launch, Role


class WorkerRole(Role):
    """A process that runs the user's script, which may compute for any time and end with any exit code.

    A worker that lost the job counts as dead. A worker whose loop was rewound asks for a restart of its script.
    """

    name = "worker"
    scripted = True
    repeats = True
    hang_rule = HangRule.NEVER
    deaths = frozenset({EXIT_LOST})
    restarts_itself = frozenset({EXIT_AGAIN})

    def settings(self, launch: Launch) -> WorkerSpec:
        """The script, and values that override the arguments of `join`."""
        return launch.worker

    def environment(self, spec: RoleSpec) -> Mapping[str, str]:
        """Environment variables that tell the script about the run.

        RANK and WORLD_SIZE are not set: other libraries would start DDP.
        """
        return load.script_env(spec, spec.read(WorkerSpec))

    def run(self, spec: RoleSpec) -> int:
        """Run the script, whose `paceline.join` uses `spec`."""
        from paceline.runtime import current_job
        from paceline.runtime.script import run_script

        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # a run that waits for this worker asks for it
        worker = spec.read(WorkerSpec)
        current_job.assign(spec, worker)
        return run_script(worker.script, list(worker.arguments), module=worker.module)
