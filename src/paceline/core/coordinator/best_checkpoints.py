"""The complete checkpoints, and which are kept: the newest ones, and the best ones by a validation (`--best`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paceline.config.policies import parse_best
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, RoundEnded
from paceline.core.coordinator.metric_names import series_of
from paceline.core.effects import Drop
from paceline.core.policies.best_versions import best_versions
from paceline.messages import Checkpoint


class KeptCheckpoints:
    """Owns the list of complete checkpoints, oldest first, and ranks them. Only `Checkpoints` changes it."""

    def __init__(self, tables: Tables, complete: Sequence[Checkpoint]) -> None:
        self.complete = sorted(complete, key=lambda c: c.folder)
        self._newest = tables.identity.spec.keep_checkpoints
        spec = tables.identity.spec.policies
        self.metric, self._larger = parse_best(spec.best) if spec.best else ("", True)
        self._number = spec.keep_best
        self._log = tables.log
        self._results = tables.results
        self._rounds = tables.rounds

    def add(self, checkpoint: Checkpoint, drop: Sequence[str]) -> list[Output]:
        """Add a checkpoint, for which those in `drop` were removed; returns the removal of others."""
        complete = [c for c in (*self.complete, checkpoint) if c.folder not in drop]
        self.complete = sorted(complete, key=lambda c: c.folder)
        return self._prune()

    def forget(self, folders: Collection[str]) -> None:
        """Forget checkpoints that do not count any more; their files stay."""
        self.complete = [c for c in self.complete if c.folder not in folders]

    def round_ended(self, event: RoundEnded) -> list[Output]:
        """Remove the checkpoints that were kept until this result was known, and are not among the best."""
        return self._prune() if self.metric else []

    def _prune(self) -> list[Output]:
        surplus = self.surplus(self.complete)
        self.complete = [c for c in self.complete if c not in surplus]
        return [Drop(tuple(c.folder for c in surplus))] if surplus else []

    def surplus(self, complete: Sequence[Checkpoint]) -> list[Checkpoint]:
        """The checkpoints that are neither among the newest nor among the best; `complete` are sorted."""
        kept = self._best(complete)
        return [c for c in complete[: -self._newest] if c.folder not in kept]

    def may_be_best(self, version: int, *, last: bool) -> bool:
        """Whether a validation that is due on `version` may show that it is one of the best."""
        if not self.metric or version < 1:
            return False
        return any(self._may_have(series_of(v)) for v in self._rounds.due(version, last=last))

    def _may_have(self, series: int) -> bool:
        """Whether validations of this series have the metric, or have no result yet."""
        names = self._results.names(self._rounds.validators, series)
        return not names or self.metric in names

    def ranked(self, complete: Sequence[Checkpoint] | None = None) -> list[tuple[Checkpoint, float]]:
        """The checkpoints of validated versions with the value of the metric, the best first."""
        complete = self.complete if complete is None else complete
        if not self.metric:
            return []
        values = self._values()
        newest = {c.position.version: c for c in complete if c.position.version in values}  # of the last incarnation
        found = {version: values[version] for version in newest}
        return [(newest[version], values[version]) for version in best_versions(found, larger=self._larger)]

    def _values(self) -> Mapping[int, float]:
        return self._results.values(self._rounds.validators, self.metric)

    def _best(self, complete: Sequence[Checkpoint]) -> set[str]:
        """The folders that must be kept: the best ones, and those whose validation has no result yet."""
        if not self.metric:
            return set()
        kept = {checkpoint.folder for checkpoint, _ in self.ranked(complete)[: self._number]}
        return kept | {c.folder for c in complete if self._is_open(c.position.version)}

    def _is_open(self, version: int) -> bool:
        return self._rounds.concerns(version) or self._results.awaits(version)
