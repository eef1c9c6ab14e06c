"""Makes a run directory from a place of checkpoints, on a machine that has never seen the run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.checkpoint.manifest import LogTip, list_checkpoints
from paceline.checkpoint.storage import Storage, open_storage
from paceline.checkpoint.terms import newest_term, next_term, take_term
from paceline.coordinator.log_parts import restore_log
from paceline.core.files.manifest import LIMIT_NBYTES
from paceline.engines.bundle.packed import read_files
from paceline.engines.bundle.unpack import unpack
from paceline.engines.place import holder, unreachable
from paceline.engines.plan import absolute_url
from paceline.engines.resume import check_fixed
from paceline.errors import UsageError
from paceline.runtime.rundir import CODE, FILES, RunDir, next_run


def restore_run(place: str, run_dir: Path | None, given: Mapping[str, Any]) -> Path:
    """Take over the run whose checkpoints are at `place`; returns its new run directory, ready to be resumed.

    The directory has a new token (or that of `token_file` in `given`), the log up to the newest checkpoint, the plan,
    and the user's files in ``code``. A run that still writes to the place is deposed.

    Raises:
        UsageError: there is no checkpoint that can be resumed without its run directory, an option of `given` would
            change the result, or the script is missing.
        DeposedError: another run took the place at the same moment.
        StateError: the place cannot be read or written, or its log is damaged.
        FilesError: the user's files there are missing or damaged.
    """
    storage = open_storage(absolute_url(place))
    try:
        newest = newest_term(storage)
        kept, _ = _newest(storage)
        check_fixed(place, kept, given)
        relative = _script_of(kept)
        if "script" not in given and not (kept.get("files") and relative) and not Path(kept["script"]).is_file():
            raise UsageError(
                f"the checkpoints at {place} do not have the script: give it, as in `paceline run --resume {place} "
                f"{Path(kept['script']).name}`"
            )
        path = run_dir if run_dir is not None else next_run(Path("runs"), _name_of(kept))
        made = not path.exists() or not any(path.iterdir())
        run = RunDir.create(path, given.get("token_file"))
        try:
            term = take_term(storage, next_term(newest, holder(path)))
            # Only now no other run completes or removes a checkpoint: look again for the newest one.
            kept, tip = _newest(storage)
            restore_log(storage, tip, run.log_file)
            if kept.get("files") and relative and "script" not in given:
                kept = kept | _unpack(run, storage, kept, relative)
            elif not Path(kept.get("cwd") or ".").is_dir():
                kept = kept | {"cwd": str(Path.cwd())}
            run.write_plan(
                kept | {"checkpoints": storage.url, "term": term.number, "term_key": term.key, "trace": None}
            )
        except BaseException:
            run.token_file.unlink(missing_ok=True)
            if made:
                shutil.rmtree(path, ignore_errors=True)
            raise
    except OSError as error:
        raise unreachable(storage, error) from error
    return path


def _newest(storage: Storage) -> tuple[dict[str, Any], LogTip]:
    """The plan and the log of the newest complete checkpoint."""
    complete = [found.manifest for found in list_checkpoints(storage, verify=False) if found.manifest is not None]
    if not complete:
        raise UsageError(f"there is no complete checkpoint at {storage.url}")
    manifest = complete[-1]
    if manifest.plan is None or manifest.log is None:
        raise UsageError(
            f"the checkpoints at {storage.url} have no log: an older version of Paceline made them. Resume the run by "
            "its directory, `paceline run --resume RUN`"
        )
    if not isinstance(manifest.plan.get("script"), str):
        raise UsageError(f"the newest checkpoint at {storage.url} names no script")
    return manifest.plan, manifest.log


def _name_of(kept: Mapping[str, Any]) -> str:
    module = str(kept.get("module") or "")
    return module.rpartition(".")[2] or Path(kept["script"]).stem


def _script_of(kept: Mapping[str, Any]) -> PurePosixPath | None:
    """The path of the script below the directory of the user's files; None if it is not there."""
    script = PurePosixPath(kept["script"])
    if not kept.get("module"):
        return PurePosixPath(script.name)
    root = PurePosixPath(kept.get("cwd") or "/")
    return script.relative_to(root) if script.is_relative_to(root) else None


def _unpack(run: RunDir, storage: Storage, kept: Mapping[str, Any], script: PurePosixPath) -> dict[str, Any]:
    """Unpack the user's files; returns the fields of the plan that name the script and the working directory here."""
    limit_nbytes = int(kept.get("files_limit") or LIMIT_NBYTES >> 20) << 20
    code = run.path / CODE
    manifest, store = read_files(storage, str(kept["files"]), run.path / FILES, limit_nbytes)
    unpack(manifest, store, code)
    before, root = PurePosixPath(kept.get("cwd") or "/"), PurePosixPath(kept["script"]).parent
    cwd = Path.cwd()
    if kept.get("module"):
        cwd = code
    elif before.is_relative_to(root) and (code / before.relative_to(root)).is_dir():
        cwd = code / before.relative_to(root)
    return {"script": str((code / script).absolute()), "cwd": str(cwd.absolute())}
