"""The log under audit, and the data that the first checks derive from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.audit.findings import CheckpointRecord, Report
from paceline.core.audit.ledger import Ints, Ledger
from paceline.core.effects import FactRow, IncarnationFact
from paceline.core.lineage import Span, lineage
from paceline.errors import StateError


class Case:
    """The input of an audit, and its report.

    `begun` maps the number of each incarnation to the fact that began it. `follow_lineage` sets `spans`, the lineage of
    the newest incarnation, and `rows`, the commits along that lineage; most checks need both.
    """

    def __init__(self, facts: Sequence[FactRow], ledger: Ledger, checkpoints: Sequence[CheckpointRecord]) -> None:
        self.report = Report()
        self.facts, self.ledger, self.checkpoints = facts, ledger, checkpoints
        self.begun: dict[int, IncarnationFact] = {}
        self.spans: tuple[Span, ...] = ()
        self.rows: Ints = np.zeros(0, dtype=np.int64)

    def follow_lineage(self) -> bool:
        """Find the lineage of the newest incarnation. If the log gives none, report the problem and return False."""
        for row in self.facts:
            if isinstance(row.fact, IncarnationFact):
                number = row.fact.number
                if number in self.begun:
                    self.report.add("lineage", f"incarnation {number} begins twice", incarnation=number)
                self.begun[number] = row.fact
        self.report.count(incarnations=len(self.begun))
        for number in sorted({*self.begun, *np.unique(self.ledger.incarnation).tolist()}):
            try:
                lineage(self.begun.values(), of=number)
            except StateError as error:
                self.report.add("lineage", str(error), incarnation=number)
        if self.report.ok:
            self.spans = lineage(self.begun.values())
            ledger = self.ledger
            self.rows = np.concatenate([np.array(ledger.rows(s.incarnation, s.last), np.int64) for s in self.spans])
        return self.report.ok

    def wrong_attempts(self, row: int, detail: str) -> None:
        """Report a commit that names the wrong attempts."""
        version, step = int(self.ledger.version[row]), int(self.ledger.step[row])
        self.report.add("slots", detail, version=version, step=step)


def contained(steps: Ints) -> tuple[int, tuple[int, ...]]:
    """The lowest step that is missing in `steps`, and the members of `steps` above that step."""
    have = np.unique(steps)
    low = int(np.argmax(np.append(have, -1) != np.arange(len(have) + 1)))
    return low, tuple(have[low:].tolist())
