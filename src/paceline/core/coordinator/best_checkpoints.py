"""Which checkpoints are kept because a validation found them good (`--best METRIC:max --keep-best K`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.config.policies import parse_best
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.metric_names import series_of
from paceline.core.policies.best_versions import best_versions
from paceline.messages import Checkpoint


class BestCheckpoints:
    """Ranks the versions that have a checkpoint. It owns no facts: all follows from results and checkpoints."""

    def __init__(self, tables: Tables) -> None:
        spec = tables.identity.spec.policies
        self.metric, self._larger = parse_best(spec.best) if spec.best else ("", True)
        self._number = spec.keep_best
        self._log = tables.log
        self._results = tables.results
        self._rounds = tables.rounds

    def may_be_best(self, version: int, *, last: bool) -> bool:
        """Whether a validation that is due on `version` may show that it is one of the best."""
        if not self.metric or version < 1:
            return False
        return any(self._may_have(series_of(v)) for v in self._rounds.due(version, last=last))

    def _may_have(self, series: int) -> bool:
        """Whether validations of this series have the metric, or have no result yet."""
        names = self._results.names(self._rounds.validators, series)
        return not names or self.metric in names

    def ranked(self, complete: Sequence[Checkpoint]) -> list[tuple[Checkpoint, float]]:
        """The checkpoints of validated versions with the value of the metric, the best first."""
        if not self.metric:
            return []
        values = self._values()
        newest = {c.position.version: c for c in complete if c.position.version in values}  # of the last incarnation
        found = {version: values[version] for version in newest}
        return [(newest[version], values[version]) for version in best_versions(found, larger=self._larger)]

    def _values(self) -> Mapping[int, float]:
        return self._results.values(self._rounds.validators, self.metric)

    def kept(self, complete: Sequence[Checkpoint]) -> set[str]:
        """The folders that must be kept: the best ones, and those whose validation has no result yet."""
        if not self.metric:
            return set()
        kept = {checkpoint.folder for checkpoint, _ in self.ranked(complete)[: self._number]}
        return kept | {c.folder for c in complete if self._is_open(c.position.version)}

    def _is_open(self, version: int) -> bool:
        return self._rounds.concerns(version) or self._results.awaits(version)
