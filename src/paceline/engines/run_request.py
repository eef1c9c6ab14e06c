"""A run that a user asks for: makes its plan from options, and its supervisor.

`paceline run` and `paceline.launch` are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.engines.host_options import HOSTS, take_host_options
from paceline.engines.module_file import named_script
from paceline.engines.place import claim_place, is_place, put_files
from paceline.engines.plan import RunPlan, is_serverless
from paceline.engines.restore import restore_run
from paceline.engines.resume import check_code, choose_checkpoint, resumed
from paceline.engines.run_options import read_arguments, read_options
from paceline.engines.screen import Screen
from paceline.engines.stop_requests import StopRequests
from paceline.engines.supervisor import Supervisor
from paceline.errors import UsageError
from paceline.runtime.rundir import RunDir, next_run, point_latest, read_token


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run with its `plan`, before anything of it is started.

    `resume` is the run or the place of checkpoints that the run continues, and `allow_changes` says that its code may
    have changed. With `is_named` the user has named the directory of the run: then ``latest`` does not follow it.
    """

    plan: RunPlan
    resume: str | None
    is_restored: bool
    allow_changes: bool
    is_named: bool

    def pinned(self) -> RunRequest:
        """The same request, whose paths do not depend on the working directory of this process."""
        return replace(self, plan=self.plan.pinned())

    def supervisor(self, screen: Screen, stop: StopRequests | None = None) -> Supervisor:
        """Make what runs it. Takes the place of the checkpoints and makes the run directory; starts no process.

        Raises:
            UsageError: something in the environment or the code of the run does not allow it.
            StateError: files of the run, or the place of its checkpoints, cannot be read or written.
        """
        plan = self.plan
        if self.is_restored:
            screen.note(f"{plan.run} goes on with the checkpoints at {self.resume}; a run that still writes there ends")
        if self.resume is not None:
            plan = check_code(plan, screen, allow_changes=self.allow_changes)
        if not plan.adopt:
            plan = put_files(plan, screen) if self.is_restored else claim_place(plan, screen)
        if self.resume is not None:
            plan = choose_checkpoint(plan, screen)
        made = Supervisor(plan, screen, stop)
        is_new = self.resume is None or self.is_restored
        if not self.is_named and (is_new or (plan.run.parent / "latest").is_symlink()):
            point_latest(plan.run)
        return made


def request_run(
    script: str | Path | None, arguments: Sequence[object] = (), options: Mapping[str, Any] | None = None
) -> RunRequest:
    """Check what the user asks for, and make the plan of the run. `options` are `RunOptions`.

    Raises:
        UsageError: an option does not exist or does not fit, or its value is not allowed; the message names it.
    """
    given = read_options(options or {})
    words = read_arguments(arguments)
    resume, run_dir, adopt = given.pop("resume", None), given.pop("dir", None), given.pop("adopt", None)
    is_module, allow_changes = given.pop("module", False), given.pop("allow_changes", False)
    if resume is None:
        given = {name: value for name, value in given.items() if value is not False}  # a switch that is off
    if words:
        given["arguments"] = words
    if "hosts" in given:
        given["ssh"] = given.pop("hosts")
    if script is not None:
        given |= named_script(Path(script), is_module=is_module)
    elif is_module:
        raise UsageError("-m: give the name of the module to run")
    if allow_changes and resume is None:
        raise UsageError("--allow-changes: only a resumed run can have changed code. Add --resume RUN, or leave it out")
    is_restored = resume is not None and is_place(resume)
    if adopt is not None:
        plan = _adopted(adopt, resume, run_dir, given)
    else:
        plan = _new(run_dir, given) if resume is None else _resumed(resume, run_dir, given)
    return RunRequest(
        plan=plan,
        resume=resume,
        is_restored=is_restored,
        allow_changes=allow_changes,
        is_named=run_dir is not None,
    )


def _new(run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    if "script" not in given:
        raise UsageError("give the SCRIPT to run, or --resume RUN")
    given = take_host_options(_sized(given, None), None)
    checked = RunPlan(run=Path("checked-before-a-directory-is-made"), **given)
    checked.check_environment()
    return checked.at(run_dir if run_dir is not None else next_run(Path("runs"), checked.name))


def _resumed(resume: str, run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    run = Path(resume)
    if is_place(resume):
        run = restore_run(resume, run_dir, given)
    elif run_dir is not None:
        raise UsageError(f"--dir {run_dir}: a resumed run stays in its own directory, {run}. Leave the option out")
    if "script" in given:
        given = {"arguments": (), **given, "cwd": Path.cwd()}
    where = RunDir.named(run)
    token = where.token()
    if "token_file" in given and read_token(given["token_file"]) != token:
        raise UsageError(f"--token-file {given['token_file']}: {where.path} has its own token, {where.token_file}")
    plan = RunPlan.of(where.path)
    return resumed(run, take_host_options(_sized(given, plan), plan.hosts))


def _sized(given: dict[str, Any], before: RunPlan | None) -> dict[str, Any]:
    """`given` with a number of servers that fits its mode, unless the user has given one; `before` is resumed."""
    mode = given.get("mode", None if before is None else before.mode)
    if not is_serverless(mode):
        return {"servers": 1, **given} if before is not None and not before.servers else given
    if option := next((name for name in ("servers", "replicas") if given.get(name)), None):
        raise UsageError(
            f"--{option} does not fit --mode {mode}: its workers hold the model, all of it each. Leave it out"
        )
    if before is not None and "mode" not in given:
        return given  # the run may have got servers while it ran
    return {"servers": 0, "replicas": 0, **given}


def _adopted(run: Path, resume: str | None, run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    if resume is not None or run_dir is not None or given:
        raise UsageError(f"--adopt {run}: the run goes on as it was started: give no other option")
    where = RunDir.named(run)
    where.token()
    plan = RunPlan.of(where.path, adopt=True)
    if plan.hosts is None:
        raise UsageError(f"--adopt {run}: only a run on several hosts outlives its launcher; use --resume {run}")
    if plan.hosts.engine != HOSTS:
        why = f"the agents of --engine {plan.hosts.engine} end with their launcher"
        raise UsageError(f"--adopt {run}: {why}; use --resume {run}")
    if where.done:
        raise UsageError(f"--adopt {run}: the run is done")
    return plan
