"""Checkpoints: when one is due, who has written its part, which old ones may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.coordinator.books import Books
from paceline.core.effects import Complete, Effect, Send
from paceline.messages import Chained, Checkpoint, Committed, Position, Saved, SaveOver
from paceline.types import Commit, NodeId, SavedFile

_BETWEEN_S = 1.0  # at the end of a phase a checkpoint is due, unless the last one is as young as this


def folder_name(incarnation: int, version: int) -> str:
    """The folder of a checkpoint; names sort by incarnation, then by version."""
    return f"i{incarnation:04d}-v{version:010d}"


@dataclass(slots=True)
class _Saving:
    checkpoint: Checkpoint
    files: dict[NodeId, tuple[SavedFile, ...]] = field(default_factory=dict)
    chains: dict[int, bytes] = field(default_factory=dict)
    copies: dict[NodeId, dict[int, bytes]] = field(default_factory=dict)
    completing: bool = False

    def differing(self) -> dict[NodeId, frozenset[int]]:
        """Servers whose copies of these blocks are not what the primaries have."""
        found = {}
        for node, known in self.copies.items():
            blocks = frozenset(b for b, chain in known.items() if self.chains.get(b, chain) != chain)
            if blocks:
                found[node] = blocks
        return found


class Keeping:
    """At most one checkpoint is under way at a time."""

    def __init__(self, books: Books) -> None:
        """`differs` is told whose copies are not what they should be; the coordinator sets it."""
        self.differs: Callable[[dict[NodeId, frozenset[int]]], list[Effect]] = lambda found: []
        self._job = books
        self._saving: _Saving | None = None
        self._completing: dict[str, Checkpoint] = {}
        self._last_version = 0
        self._last_at = 0.0

    @property
    def on(self) -> bool:
        """Whether this job has checkpoints at all."""
        return bool(self._job.spec.checkpoint_steps or self._job.spec.checkpoint_s)

    @property
    def settled(self) -> bool:
        """Whether no checkpoint is under way."""
        return self._saving is None

    def restart(self, version: int, *, soon: bool = False) -> None:
        """The job goes on from `version`: what was under way is not any more. With `soon`, the next one is due."""
        self._saving, self._job.saving = None, None
        self._last_version = max(0, version)
        self._last_at = self._job.now - (self._job.spec.checkpoint_s if soon else 0.0)

    def void(self) -> list[Effect]:
        """Blocks change hands: parts that are not written yet will not be, unless all are. The next one is due soon."""
        if self._saving is None or self._saving.completing:
            return []
        effects = self._over(self._saving)
        self._last_at = self._job.now - self._job.spec.checkpoint_s
        self._last_version -= self._job.spec.checkpoint_steps
        return effects

    def is_due(self, version: int, *, last: bool) -> bool:
        """Whether `version` goes to a checkpoint; `last` is true for the last version of a phase."""
        if not self.on or self._saving is not None or version < 1:
            return False
        spec, age_s = self._job.spec, self._job.now - self._last_at
        if spec.checkpoint_steps and version - self._last_version >= spec.checkpoint_steps:
            return True
        return bool(spec.checkpoint_s and age_s >= spec.checkpoint_s) or (last and age_s >= _BETWEEN_S)

    def begin(self, version: int) -> None:
        """Servers are about to hear that `version` goes to a checkpoint; `hold` follows once its commit is noted."""
        self._job.saving, self._last_version, self._last_at = version, version, self._job.now

    def hold(self) -> None:
        """All that belongs to the version is known now."""
        folder = folder_name(self._job.incarnation, self._job.version)
        self._saving = _Saving(Checkpoint(folder, self._position()))

    def _position(self) -> Position:
        job = self._job
        assert job.job is not None
        return Position(
            incarnation=job.incarnation,
            version=job.version,
            watermark=job.watermark.low,
            above=job.watermark.above,
            segments=tuple(job.schedule.segments),
            phases=tuple(phase.entry for phase in job.phases.phases),
            validators=tuple(job.evaluations.validators),
            job=job.job,
            metrics=job.evaluations.metrics(),
            results=tuple((n, version, values) for n, (version, values) in job.evaluations.latest.items()),
            logs=dict(job.logs),
            samples=job.totals.samples,
            empty=job.totals.skipped_slots,
            claims=job.claims.finished,
        )

    def finish(self, last: Commit | None) -> list[Effect]:
        """The job is over: its last version goes to a checkpoint, unless it is in one."""
        job, newest = self._job, self._job.checkpoint
        if not self.on or self._saving is not None or last is None or job.placement is None or job.version < 1:
            return []
        if newest is not None and newest.position.version == job.version:
            return []
        if (last.incarnation, last.version) != (job.incarnation, job.version):
            return []
        self.begin(job.version)
        self.hold()
        return [Send(s, Committed(job.generation, job.epoch, last, save=True)) for s in job.holders]

    def saved(self, sender: NodeId, message: Saved) -> list[Effect]:
        """A server has written its part, or could not."""
        job, saving = self._job, self._saving
        if saving is None or not job.is_current(message.incarnation, message.epoch) or message.version != job.saving:
            return [Send(sender, SaveOver(job.generation, message.incarnation, message.version))]
        if saving.completing or sender not in job.owners:
            return []
        if message.problem:
            member = job.members.members.get(sender)
            return self._give_up(f"{member.name if member else sender}: {message.problem}")
        saving.files[sender] = message.files
        saving.chains.update(message.chains)
        if found := saving.differing():
            return self.differs(found)
        if len(saving.files) < len(job.owners):
            return []
        assert job.model is not None
        saving.completing = True
        self._completing[saving.checkpoint.folder] = saving.checkpoint
        files = tuple(file for server in sorted(saving.files) for file in saving.files[server])
        chains = tuple(saving.chains[b].hex() for b in range(len(job.blocks)))
        drop = [c.folder for c in job.checkpoints[: -job.spec.keep_checkpoints + 1 or None]]
        return [Complete(saving.checkpoint, job.model, files, chains, tuple(drop))]

    def chained(self, sender: NodeId, message: Chained) -> list[Effect]:
        """A backup says what it has of the version that is being saved: compared with what its primary has."""
        job, saving = self._job, self._saving
        if saving is None or not job.is_current(message.incarnation, message.epoch) or message.version != job.saving:
            return []
        saving.copies[sender] = dict(message.chains)
        found = saving.differing()
        return self.differs(found) if found else []

    def completed(self, folder: str, problem: str) -> list[Effect]:
        """The manifest and the marker are written, and older folders are gone; or `problem` says why not."""
        job, saving = self._job, self._saving
        checkpoint = self._completing.pop(folder, None)
        mine = saving is not None and saving.checkpoint is checkpoint
        if checkpoint is not None and not problem:  # whole, even if the job went back meanwhile
            job.warning = ""
            job.checkpoints = sorted([*job.checkpoints, checkpoint], key=lambda c: c.folder)
            del job.checkpoints[: -job.spec.keep_checkpoints]
        if saving is None or not mine:
            return []
        return self._give_up(problem) if problem else self._over(saving)

    def _give_up(self, problem: str) -> list[Effect]:
        assert self._saving is not None
        kept = self._job.checkpoint
        older = f"{kept.folder} is kept" if kept is not None else "there is no older one"
        self._job.warning = f"no checkpoint of version {self._saving.checkpoint.position.version}: {problem}; {older}"
        return self._over(self._saving)

    def _over(self, saving: _Saving) -> list[Effect]:
        self._saving = self._job.saving = None
        version = saving.checkpoint.position.version
        over = SaveOver(self._job.generation, self._job.incarnation, version)
        return [Send(s, over) for s in self._job.owners]
