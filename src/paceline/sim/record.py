"""The state of a simulated job according to its log, for the checks: commits, schedule, placement, block values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.core.effects import IncarnationFact
from paceline.core.hash_chain import START, extend
from paceline.core.schedule import Schedule
from paceline.core.window import Watermark
from paceline.sim.symbols import Value
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, Commit, Placement, Segment


@dataclass(slots=True)
class Line:
    """All versions of one incarnation: those of earlier incarnations that it began from, then its own.

    `marks` has the watermark after each commit, `truth` the values of each block by version, `work` the weights with
    which servers applied the slots of each version, `phase_versions` the last version of each phase. `read` has values
    of committed versions that a worker has read before any server has applied the commit, by block and version.
    """

    log: list[Commit] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    truth: dict[int, list[Value]] = field(default_factory=dict)
    work: list[tuple[float, ...] | None] = field(default_factory=list)
    phase_versions: dict[int, int] = field(default_factory=dict)
    read: dict[tuple[int, int], Value] = field(default_factory=dict)

    def append(self, commit: Commit, low: int) -> None:
        """Add a commit; `low` is the watermark after it."""
        self.log.append(commit)
        self.work.append(None)
        self.marks.append(low)

    def cut(self, version: int) -> Line:
        """A copy with the versions up to and including `version`."""
        end = version + 1
        return Line(
            self.log[:end],
            self.marks[:end],
            {block: values[:end] for block, values in self.truth.items()},
            self.work[:end],
            {phase: v for phase, v in self.phase_versions.items() if v <= version},
        )

    def has(self, commit: Commit) -> bool:
        """Whether exactly this commit is in the log."""
        return commit.version < len(self.log) and self.log[commit.version] == commit

    def apply(self, commit: Commit, weights: tuple[float, ...]) -> None:
        """Note the weights with which a server applied a commit; every server must use the same weights."""
        first = self.work[commit.version]
        if first is not None and first != weights:
            raise Violation(f"servers apply step {commit.step} with weights {weights} and {first}")
        self.work[commit.version] = weights

    def set_value(self, version: int, value: Value, block: int, node: str) -> None:
        """Note the value of a block at `version` on server `node`; every copy must have the same value."""
        values = self.truth.setdefault(block, [])
        if len(values) < version:
            raise Violation(f"block {block} applies version {version} after {len(values) - 1}")
        if len(values) == version:
            early = self.read.pop((block, version), value)
            if early != value:
                raise Violation(f"{node} has {value}, and a worker has read {early} before")
            values.append(value)
        elif values[version] != value:
            raise Violation(f"{node} has {value}, another copy {values[version]}")

    def is_value(self, version: int, value: Value | None, block: int) -> bool:
        """Whether `value` is that of a block at `version`, which must be committed.

        If no server has applied the commit yet, the value is noted: servers must make the same one.
        """
        values = self.truth.get(block, [])
        if value is None or not 0 <= version < len(self.log):
            return False
        if version < len(values):
            return values[version] == value
        return self.read.setdefault((block, version), value) == value

    def end_phase(self, phase: int, version: int) -> int:
        """Note the last version of a phase; returns the version that was noted first."""
        return self.phase_versions.setdefault(phase, version)


class Record:
    """What the log says. `closing` is the segment of a stop, `placement` the newest placement in the log."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.lines: dict[int, Line] = {0: Line()}
        self.line = self.lines[0]
        self.schedule = Schedule()
        self.closing: Segment | None = None
        self.watermark = Watermark()
        self.placement: Placement | None = None
        self._chains: dict[tuple[int, int], list[bytes]] = {}

    @property
    def in_group(self) -> bool:
        """Whether the holders of blocks sum as a group in the newest placement."""
        return self.placement is not None and bool(self.placement.group)

    @property
    def log(self) -> list[Commit]:
        """The commits of the current incarnation, after those that it began from."""
        return self.line.log

    def commit(self, commit: Commit) -> None:
        """Add a commit that is written and has passed every check."""
        if commit.step != INIT_STEP:
            self.watermark.add(commit.step)
        self.line.append(commit, self.watermark.low)

    def plan(self, segments: Iterable[Segment]) -> None:
        """Add the segments of a phase, or those that replace its plan from the first of them on; they are written."""
        for segment in segments:
            self.schedule.append(segment)

    def close(self, segment: Segment) -> None:
        """Add the segment of a stop that is written: it ends the phase early."""
        self.closing = segment
        self.schedule.append(segment)

    def apply_closing(self) -> None:
        """Add the segment of the stop to the schedule again, unless the schedule ends there already."""
        if self.closing is not None and self.closing.step < self.schedule.end_step:
            self.schedule.append(self.closing)

    def place(self, placement: Placement | None) -> None:
        """Set the newest placement that is written; None after a rewind, until a placement is written."""
        self.placement = placement

    def rewind(self, fact: IncarnationFact) -> int:
        """Begin the incarnation of `fact`, which is written; returns the version that it begins from, or -1."""
        position = fact.position
        if position is None:
            self.lines[fact.number] = Line()
            self.watermark, self.schedule = Watermark(), Schedule()
        else:
            self.lines[fact.number] = self.lines[position.incarnation].cut(position.version)
            self.watermark = Watermark(position.watermark, position.above)
            self.schedule = Schedule(position.segments)
        self.incarnation, self.line = fact.number, self.lines[fact.number]
        self.place(None)
        return -1 if position is None else position.version

    def is_written(self, commit: Commit) -> bool:
        """Whether exactly this commit is in the log of its incarnation."""
        line = self.lines.get(commit.incarnation)
        return line is not None and line.has(commit)

    def chain(self, block: int, version: int, incarnation: int) -> bytes:
        """The hash chain of a block, computed from the log."""
        known = self._chains.setdefault((incarnation, block), [START])
        for commit in self.lines[incarnation].log[len(known) - 1 : version + 1]:
            fences = next((f for blocks, f in commit.variants if block in blocks), commit.fences)
            known.append(extend(known[-1], commit.version, commit.step, fences))
        return known[version + 1]

    def counted(self) -> tuple[float, int]:
        """The samples and the empty slots of all commits, as the servers applied them."""
        samples, empty = 0.0, 0
        for commit, weights in zip(self.line.log, self.line.work, strict=True):
            if commit.step != INIT_STEP and weights is not None:
                samples += sum(weights) * self.schedule.segment(commit.step).batch_size
                empty += weights.count(0.0)
        return samples, empty
