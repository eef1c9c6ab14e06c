"""A log that is being audited, and what is known of it so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.audit.findings import Claim, Report
from paceline.core.audit.ledger import Ints, Ledger
from paceline.core.effects import FactRow, IncarnationFact
from paceline.core.lineage import Span


class Case:
    """What is compared, and what the checks found. Those that look at the lineage go on from `begun`, `spans`, `rows`.

    `begun` has the incarnations by number, `spans` the lineage of the newest, and `rows` the commits along it.
    """

    def __init__(self, facts: Sequence[FactRow], ledger: Ledger, claims: Sequence[Claim]) -> None:
        self.report = Report()
        self.facts, self.ledger, self.claims = facts, ledger, claims
        self.begun: dict[int, IncarnationFact] = {}
        self.spans: tuple[Span, ...] = ()
        self.rows: Ints = np.zeros(0, dtype=np.int64)

    def note_slots(self, row: int, detail: str) -> None:
        """Note that a commit names the wrong attempts."""
        version, step = int(self.ledger.version[row]), int(self.ledger.step[row])
        self.report.add("slots", detail, version=version, step=step)


def contained(steps: Ints) -> tuple[int, tuple[int, ...]]:
    """The lowest step that is not among `steps`, and those above it."""
    have = np.unique(steps)
    low = int(np.argmax(np.append(have, -1) != np.arange(len(have) + 1)))
    return low, tuple(have[low:].tolist())
