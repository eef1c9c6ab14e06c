"""What a campaign on hosts or on a cluster has seen, and the checks at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.dials import ALLREDUCE
from paceline.runtime.rundir import RunDir
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.host_cluster import figures
from paceline.testing.launch import finish

_AUDIT_S = 120.0
_REFERENCE_S = 3600.0


@dataclass(slots=True)
class Outcome:
    """What was seen: seconds without a commit and until all was whole again, by kind, and how the run ended.

    `load` is the machine's load over 15 minutes before the first fault, and after the last one.
    """

    pauses: dict[str, list[float]] = field(default_factory=dict)
    returns: dict[str, list[float]] = field(default_factory=dict)
    rewinds: int = 0
    steps: int = 0
    digest: str = ""
    reference: str = ""
    audit: int | None = None
    problems: list[str] = field(default_factory=list)
    load: tuple[float, float] = (0.0, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The figures for a file."""
        found = asdict(self)
        for name in ("pauses", "returns"):
            found[name] = {kind: figures(values) for kind, values in found[name].items()}
        return found

    def check(self, mode: str, run: RunDir, folder: Path) -> None:
        """Compare the end of a run with its log and, in lock-step, with a run without faults."""
        summary = json.loads(run.summary_file.read_text())
        self.steps, self.digest = summary["steps"], summary["digest"]
        self.rewinds = max(self.rewinds, summary["rewinds"])
        self.audit = finish(["audit", run.path], folder / "audit.txt", {}, _AUDIT_S).code
        if self.audit != 0:
            self.problems.append("the audit is not clean")
        if self.rewinds:
            self.problems.append(f"{self.rewinds} rewinds")
        if mode in ("bsp", ALLREDUCE):  # slots are added in order
            self.reference = _reference_digest(self.steps, folder)
            if self.reference != self.digest:
                self.problems.append("the digest is not that of a run without faults")


def _reference_digest(steps: int, folder: Path) -> str:
    """The digest after so many steps of a run on this machine without faults."""
    where = folder / "reference"
    words = ["run", "--dir", where, "-w", 1, "-s", 1, "--slots", 4, "--checkpoint-every", "0", "--max-steps", steps]
    finish([*words, SCRIPT, "--epochs", 100000, "--slot-ms", 0], folder / "reference.txt", {}, _REFERENCE_S)
    digest: str = json.loads((where / "summary.json").read_text())["digest"]
    return digest
