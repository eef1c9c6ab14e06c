"""Finds the checkpoint that a command line names: a version of a run, or the folder of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint.manifest import MANIFEST, Listed, Manifest, list_checkpoints, newest, read_manifest
from paceline.checkpoint.storage import Storage, open_storage
from paceline.config.policies import larger_is_better, parse_best
from paceline.coordinator.reader import LogReader
from paceline.core.coordinator.tables.results import Decided, ResultBook
from paceline.core.effects import IncarnationFact, ValidatorFact
from paceline.core.lineage import is_shared, shared_versions
from paceline.core.policies.best_versions import best_versions
from paceline.errors import StateError, UsageError
from paceline.messages import ValidatorSpec
from paceline.runtime.rundir import RunDir
from paceline.types import Hyper

BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A complete checkpoint: where it is, and the plan of its run ({} if that is not known).

    `why` says in words why it was chosen.
    """

    storage: Storage
    folder: str
    manifest: Manifest
    plan: dict[str, Any]
    run: RunDir | None
    why: str

    @property
    def version(self) -> int:
        """The version that it holds."""
        return self.manifest.position.version

    def hyper(self) -> Hyper:
        """The hyper-parameters of its version; without the log of its run, those with which the optimizer was made."""
        at = self.manifest.position
        if self.run is not None and self.run.log_file.is_file():
            with LogReader(self.run.log_file) as reader:
                commit = reader.commit(at.incarnation, at.version)
            if commit is not None:
                return commit.hyper
        return self.manifest.model.optimizer.hyper


def choose_checkpoint(where: Path, version: str = LAST) -> Chosen:
    """The checkpoint of `version` of the run in `where`; or `where` itself, if it is a checkpoint.

    `version` is ``best``, ``last``, or a number such as ``400``.

    Raises:
        UsageError: there is no such checkpoint; the message names those that there are.
        CheckpointError: the checkpoint is damaged.
        StateError: the checkpoints or the log cannot be read.
    """
    if (where / MANIFEST).is_file():
        return _at(where)
    run = RunDir.named(where)
    storage = open_storage(run.checkpoints)
    try:
        if version == LAST:
            found, _ = newest(storage)
            return _chosen(run, storage, _complete(found, where), "the last version that is kept")
        listed = [found for found in list_checkpoints(storage, verify=False) if found.manifest is not None]
    except OSError as error:
        raise StateError(f"cannot list the checkpoints in {storage.url}: {error.strerror or error}") from None
    _complete(listed[-1] if listed else None, where)
    if version == BEST:
        return _best(run, storage, listed)
    return _chosen(run, storage, _numbered(listed, version, where), "as you asked")


def _complete(found: Listed | None, where: Path) -> Listed:
    if found is None or found.manifest is None:
        raise UsageError(f"{where} has no complete checkpoint yet: wait for the first one (--checkpoint-every)")
    return found


def _at(folder: Path) -> Chosen:
    folder = folder.resolve()
    storage = open_storage(folder.parent)
    manifest = read_manifest(storage, folder.name)
    beside = RunDir(folder.parent.parent)
    run = beside if beside.plan_file.is_file() else None
    plan = (run.plan() if run is not None else manifest.plan) or {}
    return Chosen(storage, folder.name, manifest, plan, run, "the checkpoint that you named")


def _numbered(listed: list[Listed], version: str, where: Path) -> Listed:
    versions = {found.manifest.position.version: found for found in listed if found.manifest is not None}
    if not version.isdecimal() or int(version) not in versions:
        kept = ", ".join(map(str, sorted(versions)))
        raise UsageError(f"{where} keeps no version {version!r}: give {BEST}, {LAST}, or one of {kept}")
    return versions[int(version)]


def _chosen(run: RunDir, storage: Storage, listed: Listed, why: str) -> Chosen:
    manifest = listed.manifest
    assert manifest is not None
    return Chosen(storage, listed.folder, manifest, run.plan() or manifest.plan or {}, run, why)


# ------------------------------------------------------------------ the best one


def _best(run: RunDir, storage: Storage, listed: list[Listed]) -> Chosen:
    validators, results = _results(run)
    known = {name for series in range(len(validators)) for name in results.names(validators, series)}
    if not known:
        raise UsageError(f"{run.path} has no result of validation, so no version is the best: use last")
    option = run.plan().get("best")
    if option is None and len(known) > 1:
        raise UsageError(
            f"{run.path} was run without --best, and validations produce {', '.join(sorted(known))}: which one counts "
            "is not known. Give a version by number (`paceline checkpoints` lists them)"
        )
    only = next(iter(known))
    metric, larger = parse_best(option) if option else (only, larger_is_better(only))
    values = results.values(validators, metric)
    kept = {c.manifest.position.version: c for c in listed if c.manifest is not None}
    ranked = best_versions({v: values[v] for v in kept if v in values}, larger=larger)
    if not ranked:
        raise UsageError(f"no kept version of {run.path} has a value of {metric}: use last, or a version by number")
    best = ranked[0]
    return _chosen(run, storage, kept[best], f"{metric} is {values[best]:.6g}, the best of the versions that are kept")


def _results(run: RunDir) -> tuple[list[ValidatorSpec], ResultBook]:
    """The validators of the run, and the results on versions that no rewind has undone."""
    with LogReader(run.log_file) as reader, reader.snapshot():
        facts = [row.fact for row in reader.facts()]
        rows = reader.evaluations()
    shared = shared_versions(fact for fact in facts if isinstance(fact, IncarnationFact))
    validators: list[ValidatorSpec] = []
    for fact in facts:
        if isinstance(fact, ValidatorFact) and fact.validator.number == len(validators):
            validators.append(fact.validator)
    book = ResultBook()
    book.recall(
        [
            Decided(row.version, row.validator, None, row.values)
            for row in rows
            if is_shared(shared, row.incarnation, row.version) and 0 <= row.validator < len(validators)
        ]
    )
    return validators, book
