"""The figures of a run, from its log: curves, events, and who computed how much. For reports and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from paceline.coordinator.reader import LogReader
from paceline.coordinator.records import Record, derive
from paceline.core.effects import IncarnationFact, MarkFact
from paceline.core.lineage import is_shared, shared_versions
from paceline.errors import UsageError
from paceline.messages.status import RunSummary
from paceline.runtime.rundir import RunDir

_POINTS = 600  # points of a curve: every n-th, if there are more

Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Figures:
    """A run in figures. Curves are by step; what a rewind has undone is left out of them.

    `rate` has samples per second, by the second since the run began. `shares` are the parts of the slots of the workers
    that were there at the end.
    """

    name: str
    summary: RunSummary | None
    plan: dict[str, Any]
    records: list[Record]
    logged: dict[str, Curve] = field(default_factory=dict)
    measured: dict[str, Curve] = field(default_factory=dict)
    rate: Curve = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def lost(self) -> list[Record]:
        """What went wrong: members that were lost, failovers and rewinds."""
        return [r for r in self.records if r.kind == "rewind" or " lost" in r.text or " failover" in r.text]


def figures_of(run: RunDir) -> Figures:
    """Read the figures of a run from its log, also while it runs.

    Raises:
        UsageError: the directory has no log.
        StateError: the log is damaged.
    """
    if not run.log_file.is_file():
        raise UsageError(f"{run.path} has no log: no coordinator has run there")
    with LogReader(run.log_file) as reader, reader.snapshot():
        records, _ = derive(reader)
        found = Figures(run.path.name, _summary(run, reader), run.plan(), records)
        facts = [row.fact for row in reader.facts()]
        shared = shared_versions(fact for fact in facts if isinstance(fact, IncarnationFact))
        for _, row in reader.logged_after(0):
            if is_shared(shared, row.incarnation, row.version):
                _add(found.logged, row.step, row.values)
        for result in reader.evaluations():
            if is_shared(shared, result.incarnation, result.version):
                _add(found.measured, result.version, result.values)
        marks = [fact for fact in facts if isinstance(fact, MarkFact)]
    for values in (found.logged, found.measured):
        for name, curve in values.items():
            values[name] = thinned(sorted(curve))
    found.rate.extend(thinned(_rate(marks)))
    if marks:
        found.shares.update({name: share for name, (_, share) in marks[-1].speeds.items()})
    return found


def _summary(run: RunDir, reader: LogReader) -> RunSummary | None:
    text = run.summary_file.read_text() if run.done else reader.get("summary")
    return None if text is None else msgspec.json.decode(text, type=RunSummary)


def _add(curves: dict[str, Curve], step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
        curves.setdefault(name, []).append((step, value))


def _rate(marks: list[MarkFact]) -> Curve:
    found: Curve = []
    for before, mark in pairwise(marks):
        if (seconds := mark.at - before.at) > 0 and mark.samples >= before.samples:
            found.append((mark.at - marks[0].at, (mark.samples - before.samples) / seconds))
    return found


def thinned(curve: Curve) -> Curve:
    """At most some hundred points of a curve, the last one among them."""
    stride = -(-len(curve) // _POINTS) if curve else 1
    return curve[(len(curve) - 1) % stride :: stride]


def metric_rows(run: RunDir) -> Iterator[dict[str, object]]:
    """Yield every logged value and every result of validation of a run, as rows of a table.

    Raises:
        StateError: there is no log, or it is damaged.
    """
    with LogReader(run.log_file) as reader, reader.snapshot():
        for kind, rows in (("logged", (row for _, row in reader.logged_after(0))), ("metric", reader.evaluations())):
            for row in rows:
                for name, value in row.values.items():
                    yield {
                        "kind": kind,
                        "incarnation": row.incarnation,
                        "version": row.version,
                        "step": row.step,
                        "name": name,
                        "value": value,
                    }
