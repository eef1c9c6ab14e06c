"""Chooses the plan and the checkpoint with which a run that has ended is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.checkpoint.manifest import newest
from paceline.checkpoint.storage import open_storage
from paceline.config.dials import same_lock_step
from paceline.config.live import schedule_name
from paceline.coordinator.log_check import LogCheck, check_log
from paceline.engines.fingerprint import differences, fingerprint
from paceline.engines.plan import RunPlan, absolute_url
from paceline.engines.screen import Screen
from paceline.errors import DeadlineError, StateError, TransportError, UsageError
from paceline.runtime.observing import observing
from paceline.runtime.rundir import RunDir
from paceline.transport.zmq.port import is_loopback

_FIXED = ("threads", "seed", "mode", "slots")
"""Options that change the result of a run, so that a resumed run must keep them."""

_LISTED = 5  # how many changed files a message names


def is_running(run: RunDir) -> bool:
    """Whether the run has a launcher on this machine, or a coordinator that answers.

    Raises:
        TransportError: a process at the address of the coordinator, on another machine, refuses this one: it may be the
            run's coordinator with another token or version.
    """
    if run.launched:
        return True
    if (address := run.coordinator()) is None:
        return False
    try:
        with observing(run) as observer:
            observer.status(timeout_s=1.0)
    except DeadlineError:
        return False
    except TransportError:
        # No role outlives its launcher: what listens at this address of this machine belongs to another run.
        if is_loopback(urlsplit(address).hostname or ""):
            return False
        raise
    return True


def resumed(run: Path, given: Mapping[str, Any]) -> RunPlan:
    """The plan of `run` with the options `given` on the command line; `choose_checkpoint` then sets its checkpoint.

    Raises:
        UsageError: the run does not exist or is running, or an option of `given` would change its result.
    """
    where = RunDir.named(run)
    run = where.path
    where.token()
    check_fixed(str(run), where.plan(), given)
    place = given.get("checkpoints")
    if place is not None and absolute_url(place) != absolute_url(where.checkpoints):
        raise UsageError(
            f"--checkpoints {place}: the checkpoints of {run} are in {where.checkpoints}. Leave the option out"
        )
    changes = {"trace": None} | {key: value for key, value in given.items() if key != "checkpoints"}
    plan = RunPlan.of(run, **changes, resume="")
    if is_running(where):
        raise UsageError(f"{run} is running: end it first (see `paceline status {run}`)")
    return plan


def check_fixed(run: str, kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that no option of `given` would change the result of `run`, which began with the plan `kept`.

    Raises:
        UsageError: one would; the message names it.
    """
    for name in _FIXED:
        if name == "mode" and name in given and same_lock_step(given[name], kept.get(name) or given[name]):
            continue  # the coordinator compares it with the mode in the log
        if name in given and _plain(name, given[name]) != _plain(name, kept.get(name)):
            has = "leaves it to its script" if kept.get(name) is None else f"has {kept[name]}"
            raise UsageError(
                f"--{name} {given[name]}: {run} {has}, and that is part of its result. Leave the option out, "
                "or start a new run"
            )


def check_code(plan: RunPlan, screen: Screen, *, allow_changes: bool) -> RunPlan:
    """The plan with the fingerprint of the code as it is now, after a comparison with that of the run.

    Raises:
        UsageError: the code is not that with which the run began, and `allow_changes` is false.
    """
    before, now = plan.fingerprint, fingerprint(plan.script, plan.code_root)
    if before is None:
        screen.note(
            f"{plan.run} does not say with which code it began: whether that has changed is not known", warning=True
        )
    elif different := differences(before, now):
        listed = ", ".join(different[:_LISTED]) + f" and {len(different) - _LISTED} more" * (len(different) > _LISTED)
        if not allow_changes:
            raise UsageError(
                f"the code of {plan.run} is not that with which the run began: {listed}. Put it back as it was, or add "
                "--allow-changes: then the result is no longer that of one script"
            )
        screen.note(f"{listed}: the result of this run is no longer that of one script", warning=True)
    return replace(plan, fingerprint=now, allow_changes=allow_changes)


def choose_checkpoint(plan: RunPlan, screen: Screen) -> RunPlan:
    """The plan with the newest checkpoint that is complete. Reads it in full, and names damaged ones on the screen.

    Changes nothing in the run directory.

    Raises:
        StateError: the log of the run is missing or damaged, or ends before the checkpoint; the message says which.
    """
    run = RunDir(plan.run)
    found, passed_over = newest(open_storage(run.checkpoints))
    position = None if found is None or found.manifest is None else found.manifest.position
    log = check_log(run.log_file, None if position is None else (position.incarnation, position.version))
    folders = [listed.folder for listed in (*passed_over, found) if listed is not None]
    if refusal := refused(run, log, folders):
        raise StateError(refusal)
    for listed in passed_over:
        screen.note(f"checkpoint {listed.folder} cannot be used: {listed.problem}", warning=True)
    if found is None or position is None:
        why = "nothing was committed" if log.blank else "there is no complete checkpoint"
        screen.note(f"{why}: the run starts from the beginning", warning=bool(passed_over))
        return replace(plan, resume="")
    screen.note(f"resuming from checkpoint {found.folder}: version {position.version}, step {position.watermark}")
    return replace(plan, resume=found.folder)


def refused(run: RunDir, log: LogCheck, folders: Sequence[str]) -> str:
    """Why the run cannot be resumed with its log and the checkpoints in `folders`, and what to do; "" if it can be."""
    if not log.problem or (log.blank and not folders):
        return ""
    needed = f", but the checkpoints need it (the newest is {max(folders)})" if log.blank else ""
    name = run.log_file.name
    return (
        f"{run.path} cannot be resumed: {log.problem}{needed}. Nothing was changed. Put {name} back from a copy, "
        f"together with {name}-wal if the copy has it, or start a new run"
    )


def _plain(name: str, value: Any) -> Any:
    return schedule_name(value) if name == "mode" and value is not None else value
