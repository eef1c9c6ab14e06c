"""``paceline run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.host_options import host_options, take_host_options
from paceline.cli.log_options import log_options

if TYPE_CHECKING:
    from paceline.engines.plan import RunPlan


@click.command(
    "run",
    context_settings={
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
        "max_content_width": 100,
    },
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module name, as for `python -m`.")
@click.option("-w", "--workers", metavar="N|auto", help="Worker processes.  [default: 2]")
@click.option("-s", "--servers", metavar="N|per-host", help="Parameter servers.  [default: 1]")
@click.option("--replicas", type=int, metavar="R", help="Copies of each block.  [default: 0]")
@click.option("--mode", metavar="bsp|ssp:K|asp", help="Lock-step, K steps stale, or asynchronous.")
@click.option("--slots", type=int, help="Micro-batches in a step.  [default: as the script says, else one per worker]")
@click.option("--seed", type=int, help="Seed of data order, weights and dropout.")
@click.option("--threads", type=int, help="Threads of each worker; they change the result.  [default: 1]")
@click.option(
    "--checkpoint-every", metavar="500|30s|0", help="Steps or seconds between checkpoints; 0 for none.  [default: 30s]"
)
@click.option("--keep", type=int, metavar="K", help="Keep the newest K checkpoints.  [default: 3]")
@click.option("--checkpoints", metavar="URL", help="A directory or fsspec URL for checkpoints.")
@click.option("--files-limit", type=int, metavar="MIB", help="Most MiB of your files.  [default: 256]")
@click.option(
    "--max-restarts",
    type=int,
    metavar="N",
    help="Quick deaths in a row without a commit before a role is given up.  [default: 5]",
)
@click.option("--max-steps", type=int, metavar="N", help="End the job after N steps.")
@click.option("--resume", metavar="RUN|URL", help="Continue a run from its last checkpoint.")
@click.option("--adopt", type=click.Path(path_type=Path), metavar="RUN", help="Replace the lost launcher of RUN.")
@click.option("--allow-changes", is_flag=True, help="Resume although the code has changed.")
@click.option(
    "--dir", "run_dir", type=click.Path(path_type=Path), help="A new run directory.  [default: runs/NAME-0001 …]"
)
@click.option("--summary", type=click.Path(path_type=Path), help="Also write the summary (JSON) here.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write what every process did, for Perfetto.")
@host_options
@log_options
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    resume: str | None,
    adopt: Path | None,
    run_dir: Path | None,
    script: Path | None,
    module: bool,
    allow_changes: bool,
    **options: Any,
) -> None:
    """Run SCRIPT with ARGUMENTS on workers and servers of this machine, or of several hosts.

    Everything after SCRIPT is passed to the script. With --resume, script, arguments and options are those of the run
    unless you give others. A process that dies is restarted. Exit codes: 0 done, 1 the script failed, 2 usage,
    3 a role that the run needs was lost, 8 another run took over, 130 Ctrl-C, 141 the output was closed, 143 SIGTERM.
    """
    from paceline.cli.screen import make_screen
    from paceline.engines.module_file import named_script
    from paceline.engines.place import claim_place, is_place, put_files
    from paceline.engines.resume import check_code, choose_checkpoint
    from paceline.engines.supervisor import Supervisor
    from paceline.errors import UsageError
    from paceline.runtime.rundir import point_latest
    from paceline.telemetry import logs

    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if script is not None:
        given |= named_script(script, is_module=module)
    elif module:
        raise UsageError("-m: give the name of the module to run")
    if allow_changes and resume is None:
        raise UsageError("--allow-changes: only a resumed run can have changed code. Add --resume RUN, or leave it out")
    restored = resume is not None and is_place(resume)
    if adopt is not None:
        plan = _adopted(adopt, resume, run_dir, given)
    else:
        plan = _new(run_dir, given) if resume is None else _resumed(resume, run_dir, given)
    logs.set_up(plan.log_level, plan.log_format, process="launcher")
    with make_screen() as screen:
        if restored:
            screen.note(f"{plan.run} goes on with the checkpoints at {resume}; a run that still writes there ends")
        if resume is not None:
            plan = check_code(plan, screen, allow_changes=allow_changes)
        if adopt is None:
            plan = put_files(plan, screen) if restored else claim_place(plan, screen)
        if resume is not None:
            plan = choose_checkpoint(plan, screen)
        local = Supervisor(plan, screen)
        if run_dir is None and (resume is None or restored or (plan.run.parent / "latest").is_symlink()):
            point_latest(plan.run)
        code = local.run()
    sys.exit(code)


def _new(run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    from paceline.engines.plan import RunPlan
    from paceline.errors import UsageError
    from paceline.runtime.rundir import next_run

    if "script" not in given:
        raise UsageError("give the SCRIPT to run, or --resume RUN")
    given = take_host_options(given, None)
    checked = RunPlan(run=Path("checked-before-a-directory-is-made"), **given)
    checked.check_environment()
    return checked.at(run_dir if run_dir is not None else next_run(Path("runs"), checked.name))


def _resumed(resume: str, run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    from paceline.engines.place import is_place
    from paceline.engines.plan import RunPlan
    from paceline.engines.restore import restore_run
    from paceline.engines.resume import resumed
    from paceline.errors import UsageError
    from paceline.runtime.rundir import RunDir, read_token

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
    return resumed(run, take_host_options(given, RunPlan.of(where.path).hosts))


def _adopted(run: Path, resume: str | None, run_dir: Path | None, given: dict[str, Any]) -> RunPlan:
    from paceline.engines.plan import RunPlan
    from paceline.errors import UsageError
    from paceline.runtime.rundir import RunDir

    if resume is not None or run_dir is not None or given:
        raise UsageError(f"--adopt {run}: the run goes on as it was started: give no other option")
    where = RunDir.named(run)
    where.token()
    plan = RunPlan.of(where.path, adopt=True)
    if plan.hosts is None:
        raise UsageError(f"--adopt {run}: only a run on several hosts outlives its launcher; use --resume {run}")
    if where.done:
        raise UsageError(f"--adopt {run}: the run is done")
    return plan
