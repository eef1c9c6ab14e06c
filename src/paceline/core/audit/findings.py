"""What the audit gets about checkpoints (`CheckpointRecord`), and what it reports (`Report`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.messages import Position

LISTED = 20
"""How many problems of one kind a report lists; it only counts further problems of that kind."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """What the manifest of a checkpoint says: its position in the job, and the hash chain of each block, in hex."""

    folder: str
    position: Position
    chains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that the log breaks. `where` locates it by numbers: version, step, slot, epoch, block, folder …."""

    kind: str
    detail: str
    where: dict[str, int | str]


@dataclass(slots=True)
class Counts:
    """Totals along the newest lineage. `recomputed` counts the commits beside it, which a rewind undid.

    `commits` includes that of the initial weights, which is no step. `left_out` counts the samples of complete epochs
    that `drop_last` left out, `bad_samples` those that steps lack as bad records, once for each epoch. `segments` are
    those of the plan, in all phases.
    """

    commits: int = 0
    steps: int = 0
    slots: int = 0
    empty_slots: int = 0
    samples: int = 0
    epochs: int = 0
    left_out: int = 0
    bad_samples: int = 0
    incarnations: int = 1
    recomputed: int = 0
    checkpoints: int = 0
    segments: int = 0
    lost_commits: int = 0
    lost_slots: int = 0
    duplicate_slots: int = 0


@dataclass(slots=True)
class Report:
    """The result of an audit.

    `begun` lists (epoch, samples applied so far) of incomplete epochs. `omitted` counts, by kind, the problems that are
    not listed. `bad_records` names the records that the log leaves out.
    """

    counts: Counts = field(default_factory=Counts)
    begun: tuple[tuple[int, int], ...] = ()
    problems: list[Problem] = field(default_factory=list)
    omitted: dict[str, int] = field(default_factory=dict)
    bad_records: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the audit found no problem."""
        return not self.problems

    def add(self, kind: str, detail: str, /, **where: int | str) -> None:
        """Record a problem."""
        if sum(p.kind == kind for p in self.problems) < LISTED:
            self.problems.append(Problem(kind, detail, where))
        else:
            self.omitted[kind] = self.omitted.get(kind, 0) + 1

    def count(self, **more: int) -> None:
        """Add to the totals, by their names in `Counts`."""
        for name, number in more.items():
            setattr(self.counts, name, getattr(self.counts, name) + number)

    def leave_out(self, record: str) -> None:
        """Name a bad record, which the log leaves out."""
        self.bad_records.append(record)

    def leave_begun(self, epochs: tuple[tuple[int, int], ...]) -> None:
        """Set the incomplete epochs, each with the number of samples applied so far."""
        self.begun = epochs
