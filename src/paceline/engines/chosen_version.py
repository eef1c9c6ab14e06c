"""Chooses one kept version of a run: the best one, the last one, or one by number."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checkpoint.manifest import Listed, Manifest, list_checkpoints
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
class ChosenVersion:
    """A complete checkpoint of a run. `why` says in words why it was chosen; `hyper` is that of its version."""

    storage: Storage
    folder: str
    manifest: Manifest
    why: str
    hyper: Hyper

    @property
    def version(self) -> int:
        """The version that it holds."""
        return self.manifest.position.version


def choose_version(run: RunDir, which: str) -> ChosenVersion:
    """The kept version of `run` that `which` names: ``best``, ``last``, or a version such as ``400``.

    Raises:
        UsageError: there is none, or `which` names none; the message lists what is kept.
        StateError: the checkpoints or the log cannot be read.
    """
    storage = open_storage(run.checkpoints)
    try:
        listed = [found for found in list_checkpoints(storage, verify=False) if found.manifest is not None]
    except OSError as error:
        raise StateError(f"cannot list the checkpoints in {storage.url}: {error.strerror or error}") from None
    if not listed:
        raise UsageError(f"{run.path} has no complete checkpoint in {storage.url}")
    if which == LAST:
        return _chosen(run, storage, listed[-1], "the last version that is kept")
    if which == BEST:
        return _best(run, storage, listed)
    versions = {found.manifest.position.version: found for found in listed if found.manifest is not None}
    if not which.isdecimal() or int(which) not in versions:
        kept = ", ".join(map(str, sorted(versions)))
        raise UsageError(f"{run.path} keeps no version {which!r}: give best, last, or one of {kept}")
    return _chosen(run, storage, versions[int(which)], "as you asked")


def _best(run: RunDir, storage: Storage, listed: list[Listed]) -> ChosenVersion:
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


def _chosen(run: RunDir, storage: Storage, listed: Listed, why: str) -> ChosenVersion:
    manifest = listed.manifest
    assert manifest is not None
    hyper = manifest.model.optimizer.hyper
    if run.log_file.is_file():
        with LogReader(run.log_file) as reader:
            commit = reader.commit(manifest.position.incarnation, manifest.position.version)
        hyper = hyper if commit is None else commit.hyper
    return ChosenVersion(storage, listed.folder, manifest, why, hyper)
