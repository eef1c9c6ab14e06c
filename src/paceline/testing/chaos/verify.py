"""Read what a round is checked by: its log, its audit, and the digest of a run without faults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from paceline.coordinator.reader import LogReader
from paceline.core.coordinator.tables.incarnation import RESUMED
from paceline.core.effects import IncarnationFact
from paceline.runtime.rundir import RunDir
from paceline.testing.chaos.plan import CampaignSpec
from paceline.testing.chaos.run import Stuck
from paceline.testing.launch import finish

_AUDIT_S = 120.0
_REFERENCE_S = 3600.0

Origins = Mapping[int, tuple[int, int]]
"""The (incarnation, version) from which each incarnation began; (-1, -1) if it began from nothing."""


def missing_commits(
    shown: Mapping[int, Set[int]], commits: Set[tuple[int, int]], origins: Origins
) -> list[tuple[int, int]]:
    """The versions that a status showed but the log does not have, as (incarnation, version).

    A version that a status showed in an incarnation must be a commit of this incarnation, or of the lineage that the
    incarnation began from.
    """
    return [
        (incarnation, version)
        for incarnation in sorted(shown)
        for version in sorted(shown[incarnation])
        if not _logged(incarnation, version, commits, origins)
    ]


def _logged(incarnation: int, version: int, commits: Set[tuple[int, int]], origins: Origins) -> bool:
    while incarnation >= 0:
        parent, at = origins.get(incarnation, (-1, -1))
        if version > at:
            return (incarnation, version) in commits
        incarnation = parent
    return False


def read_log(run: RunDir) -> tuple[set[tuple[int, int]], dict[int, tuple[int, int]], int]:
    """The commits of a run as (incarnation, version), the origins of its incarnations, and the number of rewinds."""
    with LogReader(run.log_file) as reader:
        commits = {(c.incarnation, c.version) for c in reader.commits()}
        facts = [row.fact for row in reader.facts()]
    rewinds = sum(isinstance(fact, IncarnationFact) and fact.why != RESUMED for fact in facts)
    return commits, origins_of(facts), rewinds


def origins_of(facts: Iterable[object]) -> dict[int, tuple[int, int]]:
    """The origin of each incarnation, from the facts of the log."""
    found = {}
    for fact in facts:
        if isinstance(fact, IncarnationFact):
            at = fact.position
            found[fact.number] = (-1, -1) if at is None else (at.incarnation, at.version)
    return found


def audit(run: RunDir, env: Mapping[str, str]) -> dict[str, Any]:
    """The report of ``paceline audit``.

    Raises:
        Stuck: there is no report, or the report contradicts the exit code.
    """
    file, out = run.path.with_suffix(".audit.json"), run.path.with_suffix(".audit.out")
    launched = finish(["audit", run.path, "--json", file], out, env, _AUDIT_S)
    try:
        report: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        raise Stuck(
            f"`paceline audit {run.path}` ended with {launched.code} and no report: {launched.tail()}"
        ) from None
    if (launched.code == 0) != report["ok"]:
        raise Stuck(f"`paceline audit {run.path}` ended with {launched.code}, but its report says ok={report['ok']}")
    return report


class References:
    """The digests of runs without faults. Each such run is made once."""

    def __init__(self, spec: CampaignSpec) -> None:
        self._spec = spec
        self._known: dict[int, str] = {}

    def digest(self, steps: int) -> str:
        """The digest of a run without faults after `steps` steps.

        Raises:
            Stuck: the run without faults fails.
        """
        if steps not in self._known:
            self._known[steps] = self._make(steps, self._spec.dir / f"reference-{steps}")
        return self._known[steps]

    def _make(self, steps: int, path: Path) -> str:
        spec = self._spec
        workers, servers = spec.plain_shape or (spec.workers, spec.servers)
        shape = ["-w", workers, "-s", servers or 1, "--mode", "bsp" if spec.collective else spec.mode]
        slots = ["--slots", spec.slots] if spec.slots else []
        words = ["run", "--dir", path, *shape, *slots, "--checkpoint-every", "0", "--max-steps", steps]
        out = path.with_suffix(".out")
        launched = finish([*words, spec.script, *spec.arguments, *spec.plain_arguments], out, {}, _REFERENCE_S)
        if launched.code != 0:
            raise Stuck(f"the run without faults ended with {launched.code}: {launched.tail()}")
        summary = json.loads((path / "summary.json").read_text())
        if summary["steps"] != steps:
            raise Stuck(f"the run without faults made {summary['steps']} steps instead of {steps}; see {out}")
        digest: str = summary["digest"]
        return digest
