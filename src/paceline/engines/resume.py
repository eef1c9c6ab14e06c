"""Chooses the plan and the checkpoint with which a run that has ended is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.checkpoint.manifest import newest
from paceline.checkpoint.storage import open_storage
from paceline.clients.observer import Observer
from paceline.config.dials import parse_mode
from paceline.engines.plan import RunPlan, absolute_url
from paceline.engines.screen import Screen
from paceline.errors import TransportError, UsageError
from paceline.runtime.rundir import RunDir

_FIXED = ("threads", "seed", "mode", "slots")
"""Options that change the result of a run, so that a resumed run must keep them."""


def is_running(run: RunDir) -> bool:
    """Whether the run has a launcher on this machine, or a coordinator that answers."""
    if run.launched:
        return True
    if run.coordinator() is None:
        return False
    observer = Observer(run.coordinator, run.token())
    try:
        observer.status(timeout_s=1.0)
    except TransportError:
        return False
    finally:
        observer.close()
    return True


def resumed(run: Path, given: Mapping[str, Any]) -> RunPlan:
    """The plan of `run` with the options `given` on the command line; `choose_checkpoint` then sets its checkpoint.

    Raises:
        UsageError: the run does not exist or is running, or an option of `given` would change its result.
    """
    where = RunDir(run)
    where.token()
    kept = where.plan()
    for name in _FIXED:
        if name in given and _plain(name, given[name]) != _plain(name, kept.get(name)):
            has = "leaves it to its script" if kept.get(name) is None else f"has {kept[name]}"
            raise UsageError(
                f"--{name} {given[name]}: {run} {has}, and that is part of its result. Leave the option out, "
                "or start a new run"
            )
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


def choose_checkpoint(plan: RunPlan, screen: Screen) -> RunPlan:
    """The plan with the newest checkpoint that is complete. Reads it in full, and names damaged ones on the screen."""
    found, passed_over = newest(open_storage(RunDir(plan.run).checkpoints))
    for listed in passed_over:
        screen.note(f"checkpoint {listed.folder} cannot be used: {listed.problem}", warning=True)
    if found is None or found.manifest is None:
        screen.note("there is no complete checkpoint: the run starts from the beginning", warning=bool(passed_over))
        return replace(plan, resume="")
    position = found.manifest.position
    screen.note(f"resuming from checkpoint {found.folder}: version {position.version}, step {position.watermark}")
    return replace(plan, resume=found.folder)


def _plain(name: str, value: Any) -> Any:
    return parse_mode(value).name if name == "mode" and value is not None else value
