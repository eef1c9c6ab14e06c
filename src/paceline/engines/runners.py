"""Makes the runner of a run: who starts its processes."""

from __future__ import annotations

from paceline.engines.host_runner import HostRunner
from paceline.engines.local_runner import LocalRunner
from paceline.engines.plan import RunPlan
from paceline.engines.role_runner import RoleRunner
from paceline.runtime.rundir import RunDir


def make_runner(plan: RunPlan, run: RunDir) -> RoleRunner:
    """Make the runner for `plan`, whose run directory is `run`: this machine, or hosts with agents.

    Raises:
        UsageError: the supervisor cannot listen for agents, or the user's files cannot be sent.
    """
    local = LocalRunner(run, cwd=plan.cwd, env=plan.env)
    return local if plan.hosts is None else HostRunner(plan, plan.hosts, run, local)
