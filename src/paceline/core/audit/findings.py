"""What an audit is told of checkpoints, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.messages import Position

LISTED = 20
"""Problems of one kind that are named one by one."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the manifest of a checkpoint says: where it is, and each block's hash chain, in hex."""

    folder: str
    position: Position
    chains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must not be. `where` names it by number: version, step, slot, epoch, block, folder …."""

    kind: str
    detail: str
    where: dict[str, int | str]


@dataclass(slots=True)
class Counts:
    """What was looked at along the lineage. `recomputed` commits are not on it: their steps were computed again."""

    commits: int = 0
    slots: int = 0
    empty_slots: int = 0
    samples: int = 0
    epochs: int = 0
    incarnations: int = 1
    recomputed: int = 0
    checkpoints: int = 0
    lost_commits: int = 0
    lost_slots: int = 0
    duplicate_slots: int = 0


@dataclass(slots=True)
class Report:
    """What an audit found.

    `begun` lists (epoch, samples applied so far) of epochs that are not whole yet; `omitted` counts, by kind, the
    problems beyond those that are listed.
    """

    counts: Counts = field(default_factory=Counts)
    begun: tuple[tuple[int, int], ...] = ()
    problems: list[Problem] = field(default_factory=list)
    omitted: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, kind: str, detail: str, /, **where: int | str) -> None:
        """Note a problem."""
        if sum(p.kind == kind for p in self.problems) < LISTED:
            self.problems.append(Problem(kind, detail, where))
        else:
            self.omitted[kind] = self.omitted.get(kind, 0) + 1
