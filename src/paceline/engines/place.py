"""Takes a place of checkpoints for a run, and puts the user's files there (rule 16)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.checkpoint.manifest import list_checkpoints
from paceline.checkpoint.storage import Storage, open_storage
from paceline.checkpoint.terms import Term, newest_term, next_term, take_term
from paceline.engines.bundle.collect import collect, fill
from paceline.engines.bundle.packed import write_files
from paceline.engines.bundle.store import Store
from paceline.engines.plan import RunPlan, absolute_url
from paceline.engines.screen import Screen
from paceline.errors import DeposedError, FilesError, StateError, UsageError
from paceline.runtime.rundir import CODE, RunDir


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
        with _noted(plan, term):
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


@contextmanager
def _noted(plan: RunPlan, term: Term) -> Iterator[None]:
    """Note the term in the run directory before the `with` block takes it; forget it if the block fails.

    So a run that is killed in between knows its own term later. A new run has no directory yet, and nothing to lose.
    """
    run = RunDir(plan.run)
    if plan.resume is None:
        yield
        return
    before = run.plan()
    run.write_plan({**before, "term": term.number, "term_key": term.key})
    try:
        yield
    except Exception:
        run.write_plan(before)
        raise


def unreachable(storage: Storage, error: OSError) -> StateError:
    """The error that the place cannot be read or written."""
    return StateError(f"cannot use the checkpoints at {storage.url}: {error.strerror or error}")


def _check_unused(plan: RunPlan, storage: Storage) -> None:
    if any(listed.manifest is not None for listed in list_checkpoints(storage, verify=False)):
        raise UsageError(
            f"--checkpoints {plan.checkpoints}: there are checkpoints of another run. `paceline run --resume "
            f"{plan.checkpoints}` continues that run; name another place for a new one"
        )


def _put_files(plan: RunPlan, storage: Storage, screen: Screen) -> str:
    """Put the user's files at the place; returns the digest of their manifest, "" if the place does not have them."""
    if plan.files and plan.script.resolve().is_relative_to((plan.run / CODE).resolve()):
        return plan.files  # the run was resumed with the files that are there
    exclude = [path for path in (plan.run, plan.summary, plan.trace) if path is not None]
    if "://" not in storage.url:
        exclude.append(Path(storage.url))
    try:
        manifest = collect(plan.code_root, plan.script, plan.files_limit << 20, exclude=exclude)
        with TemporaryDirectory(prefix="paceline-files-") as folder:
            store = Store(Path(folder), max(1, plan.files_limit << 20))
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
