"""Takes a place of checkpoints for a run, and puts the user's files there (rule 16)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.checkpoint.manifest import list_checkpoints
from paceline.checkpoint.storage import Storage, open_storage
from paceline.checkpoint.terms import Term, newest_term, next_term, take_term
from paceline.core.files.manifest import FileManifest, decode
from paceline.engines.bundle.collect import collect, fill
from paceline.engines.bundle.packed import MANIFEST, write_files
from paceline.engines.bundle.store import Store
from paceline.engines.bundle.unpack import unpack
from paceline.engines.plan import RunPlan, absolute_url
from paceline.engines.screen import Screen
from paceline.errors import DeposedError, FilesError, StateError, UsageError
from paceline.runtime.rundir import CODE, FILES, RunDir


def checkpoints_note(plan: RunPlan) -> str:
    """What a run with several hosts says at its start about the place of its checkpoints; "" if that is named."""
    if plan.checkpoints is not None:
        return ""
    where = RunDir(plan.run).checkpoints
    return (
        f"checkpoints go to {where}, which only this machine sees: servers on other hosts cannot write there, and if "
        "this machine is lost the run is lost. Name a place that every host sees, such as a shared directory or "
        "s3://…, with --checkpoints URL"
    )


def claim_place(plan: RunPlan, screen: Screen) -> RunPlan:
    """Take the next term at the place of the plan's checkpoints; returns the plan that holds it.

    Without `--checkpoints` the checkpoints are in the run directory, which needs no term.

    Raises:
        UsageError: a new run, and the place has checkpoints of another run.
        DeposedError: another run has taken over the place, before or just now.
        StateError: the place cannot be read or written.
    """
    if plan.checkpoints is None:
        return plan
    storage = open_storage(absolute_url(plan.checkpoints))
    try:
        newest = newest_term(storage)
        if plan.resume is None:
            _check_unused(plan, storage)
        elif newest is not None and _is_another(newest, plan):
            raise DeposedError(plan.term, newest.number, storage.url)
        term = next_term(newest, holder(plan.run))
        if plan.resume is not None:
            # Note the term first: a run that is killed before it saves its plan then knows the term as its own.
            run = RunDir(plan.run)
            run.write_plan({**run.plan(), "term": term.number, "term_key": term.key})
        take_term(storage, term)
    except OSError as error:
        raise unreachable(storage, error) from error
    return put_files(replace(plan, term=term.number, term_key=term.key), screen)


def put_files(plan: RunPlan, screen: Screen) -> RunPlan:
    """Put the user's files at the place of the checkpoints; returns the plan with the digest of their manifest.

    If they cannot be listed or are too large, a warning says so, and the run goes on: its checkpoints do not have them.

    Raises:
        StateError: the place cannot be written.
    """
    storage = open_storage(absolute_url(plan.checkpoints or ""))
    try:
        return replace(plan, files=_put_files(plan, storage, screen))
    except OSError as error:
        raise unreachable(storage, error) from error


def holder(run: Path) -> str:
    """Who takes a term, for people: this machine and the run directory."""
    return f"{socket.gethostname()}:{run.absolute()}"


def _is_another(newest: Term, plan: RunPlan) -> bool:
    """Whether another run has taken the place since. A plan may be ahead: its run ended before it took the term."""
    return newest.number > plan.term or (newest.number == plan.term and newest.key != plan.term_key)


def unreachable(storage: Storage, error: OSError) -> StateError:
    """The error that the place cannot be read or written."""
    return StateError(f"cannot use the checkpoints at {storage.url}: {error.strerror or error}")


def _check_unused(plan: RunPlan, storage: Storage) -> None:
    if any(listed.manifest is not None for listed in list_checkpoints(storage, verify=False)):
        raise UsageError(
            f"--checkpoints {plan.checkpoints}: there are checkpoints of another run. `paceline run --resume "
            f"{plan.checkpoints}` continues that run; name another place for a new one"
        )


def plan_files(plan: RunPlan) -> FileManifest:
    """The manifest of the user's files: as they were at the start if the run has a copy of them, else as they are now.

    Their contents are below `plan.code_root`.

    Raises:
        FilesError: they are too large, or one of them cannot be read or sent.
    """
    code, kept = plan.run / CODE, plan.run / FILES
    if plan.script.resolve().is_relative_to(code.resolve()):
        with suppress(FilesError, FileNotFoundError):  # somebody has changed the copy: what is there now counts
            manifest = decode((kept / MANIFEST).read_bytes(), plan.files_limit << 20)
            unpack(manifest, Store(kept), code)  # checks every file
            return manifest
    exclude = [path for path in (plan.run, plan.summary, plan.trace) if path is not None]
    if plan.checkpoints is not None and "://" not in plan.checkpoints:
        exclude.append(Path(plan.checkpoints))
    return collect(plan.code_root, plan.script, plan.files_limit << 20, exclude=exclude)


def _put_files(plan: RunPlan, storage: Storage, screen: Screen) -> str:
    """Put the user's files at the place; returns the digest of their manifest, "" if the place does not have them."""
    try:
        manifest = plan_files(plan)
        with TemporaryDirectory(prefix="paceline-files-") as folder:
            store = Store(Path(folder), plan.files_limit << 20)
            fill(store, manifest, plan.code_root)
            write_files(storage, manifest, store)
    except FilesError as error:
        screen.note(
            f"the checkpoints will not have your files, so a resume on another machine needs the script: {error}",
            warning=True,
        )
        return ""
    return manifest.digest


def is_place(where: str) -> bool:
    """Whether `where` is a place of checkpoints, not a run directory."""
    if "://" in where:
        return True
    return not RunDir(Path(where)).token_file.exists() and os.path.isdir(Path(where, "terms"))
