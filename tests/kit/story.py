"""A made-up log of a job: commits, facts and checkpoints that agree with each other, for tests to damage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from paceline.core.audit.audit import audit
from paceline.core.audit.findings import CheckpointRecord, Report
from paceline.core.coordinator.tables.phases import PhaseBook
from paceline.core.effects import FactRow, IncarnationFact, JobFact, PhaseFact, StopFact
from paceline.core.hash_chain import START, extend
from paceline.core.schedule import Schedule
from paceline.core.window import Watermark
from paceline.messages import JobArgs, Position
from paceline.types import INIT_STEP, Commit, Fence, PhaseSpec, Segment

SERVERS = ((0, 1, 4), (2, 3))
"""The blocks of each server."""


@dataclass
class Story:
    """Builds the log of a job. `others` is how often a server uses other attempts than the commit names."""

    mode: str = "bsp"
    slots: int | None = 2
    others: float = 0.2
    seed: int = 7
    facts: list[FactRow] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = JobArgs(self.seed, self.mode, self.slots, 1)
        self.incarnation, self.version, self.generation = 0, -1, 1
        self.mark = Watermark()
        self.book = PhaseBook(2)
        self.chains = [START] * 5
        self.counter = 0
        self.rng = random.Random(self.seed)
        self._kept: dict[str, list[bytes]] = {}
        self._fact(JobFact(self.job))
        self.commit(INIT_STEP)

    @property
    def schedule(self) -> Schedule:
        """All segments so far."""
        return self.book.schedule

    def _fact(self, fact: JobFact | PhaseFact | IncarnationFact | StopFact) -> None:
        self.facts.append(FactRow(self.incarnation, self.version, fact))

    def phase(
        self,
        data_len: int = 20,
        batch: int = 2,
        epochs: int = 2,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        steps: int = 0,
    ) -> Segment:
        """Begin a phase, as a call of `batches` does."""
        spec = PhaseSpec(len(self.book.phases), data_len, batch, self.slots, epochs, shuffle, drop_last, steps)
        segment, *more = self.book.begin(spec, self.job, "worker-0")
        self._fact(PhaseFact(spec, segment, tuple(more)))
        return segment

    def _fences(self, slots: int) -> tuple[Fence, ...]:
        self.counter += slots
        return tuple(Fence(self.generation, self.counter - i) for i in range(slots))

    def commit(self, step: int) -> Commit:
        """Commit one step."""
        slots = self.schedule.num_slots(step)
        fences = self._fences(slots)
        variants = []
        interchangeable = step != INIT_STEP and self.schedule.window(step) == 0
        for blocks in SERVERS:
            used = fences
            if interchangeable and self.rng.random() < self.others:
                other = self._fences(slots)
                used = tuple(self.rng.choice(pair) for pair in zip(fences, other, strict=True))
            if used != fences:
                variants.append((blocks, used))
            for block in blocks:
                self.chains[block] = extend(self.chains[block], self.version + 1, step, used)
        self.version += 1
        samples = 0 if step == INIT_STEP else self.schedule.place(step).samples
        stale = 0 if step == INIT_STEP or self.schedule.window(step) == 0 else max(0, step - self.mark.low)
        made = Commit(
            self.incarnation, self.version, step, fences, ({"lr": 0.1},), 1.0, False, stale, 0, float(samples), 0,
            tuple(variants),
        )  # fmt: skip
        self.mark.add(step)
        self.commits.append(made)
        phase = self.book.open
        if phase is not None and self.mark.low >= phase.end:
            self.book.close(self.version)
        return made

    def go(self, steps: int | None = None) -> Story:
        """Commit the next steps (None: to the end of the phase), in any order that the window allows."""
        phase = self.book.open
        while phase is not None and phase.end_version is None and (steps is None or steps > 0):
            window = self.schedule.window(self.mark.low)
            last = phase.end if window < 0 else min(phase.end, self.mark.low + window + 1)
            ready = [s for s in range(self.mark.low, min(last, self.mark.low + 6)) if not self.mark.has(s)]
            self.commit(self.rng.choice(ready))
            steps = None if steps is None else steps - 1
        return self

    def save(self) -> CheckpointRecord:
        """Add a complete checkpoint of the current version."""
        position = Position(
            self.incarnation, self.version, self.mark.low, self.mark.above, tuple(self.schedule.segments),
            tuple(phase.entry for phase in self.book.phases), (), self.job, {},
        )  # fmt: skip
        folder = f"i{self.incarnation:04d}-v{self.version:010d}"
        self.checkpoints.append(CheckpointRecord(folder, position, tuple(chain.hex() for chain in self.chains)))
        self._kept[folder] = list(self.chains)
        return self.checkpoints[-1]

    def rewind(self, to: CheckpointRecord | None) -> None:
        """Rewind the job to a checkpoint, or to nothing, as after the loss of a server."""
        before, self.incarnation = self.version, self.incarnation + 1
        position = to.position if to is not None else None
        fact = IncarnationFact(self.incarnation, to.folder if to is not None else "", position, "server-0 died")
        self.facts.append(FactRow(self.incarnation, before, fact))
        self.version = -1 if position is None else position.version
        self.mark = Watermark() if position is None else Watermark(position.watermark, position.above)
        self.book.reset(position)
        self.chains = [START] * 5 if to is None else list(self._kept[to.folder])
        if position is None:
            self.commit(INIT_STEP)

    def restart(self) -> None:
        """Begin a new generation, as a restarted coordinator does."""
        self.generation, self.counter = self.generation + 1, 0

    def stop(self, step: int) -> None:
        """End the open phase before `step`."""
        closing = self.book.end_at(step)
        self._fact(StopFact("enough", closing, step))
        assert closing is not None
        self.book.cut(closing)

    def audit(self) -> Report:
        return audit(self.facts, self.commits, self.checkpoints)


def eventful(mode: str = "bsp") -> Story:
    """Return a story with phases, rewinds, a restarted coordinator, checkpoints and epochs that end in short steps."""
    story = Story(mode, slots=3 if mode == "bsp" else 1)
    story.phase(data_len=50, batch=4, epochs=2)
    story.go(4)
    story.save()
    story.go(2)
    first = story.save()
    story.go(2)
    story.rewind(first)
    story.go()
    story.restart()
    story.phase(data_len=31, batch=2, epochs=3, drop_last=True)
    story.go(5)
    second = story.save()
    story.go(3)
    story.rewind(second)
    story.rewind(second)
    story.go()
    story.phase(data_len=10, batch=4, epochs=1, shuffle=False)
    story.go(1)
    story.save()
    return story
