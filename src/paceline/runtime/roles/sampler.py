"""The role of a sampler."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config import load
from paceline.config.role_spec import RoleSpec, WorkerSpec
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_LOST
from paceline.runtime.roles.base import HangRule, Launch, Role


class SamplerRole(Role):
    """A process that runs the user's script up to its loops, and prepares batches there. Any other can replace it.

    Its end is not reported to the coordinator: nothing follows from it.
    """

    name = "sampler"
    scripted = True
    repeats = True
    reported = False
    hang_rule = HangRule.COORDINATOR
    deaths = frozenset({EXIT_LOST})
    restarts_itself = frozenset({EXIT_AGAIN})

    def settings(self, launch: Launch) -> WorkerSpec:
        """The same as those of a worker: the script is the same."""
        return launch.worker

    def environment(self, spec: RoleSpec) -> Mapping[str, str]:
        """What the script may read, as in a worker."""
        return load.script_env(spec, spec.read(WorkerSpec))

    def run(self, spec: RoleSpec) -> int:
        """Run the script, whose `paceline.join` uses `spec`."""
        from paceline.runtime import current_job
        from paceline.runtime.sampling_job import make_sampler_job
        from paceline.runtime.script import run_script

        worker = spec.read(WorkerSpec)
        current_job.assign(spec, worker, make_sampler_job)
        return run_script(worker.script, list(worker.arguments), module=worker.module)
