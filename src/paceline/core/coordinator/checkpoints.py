"""Checkpoints: when one is due, which servers have written their part, which old ones are removed. Rules 6 and 9."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.best_checkpoints import KeptCheckpoints
from paceline.core.coordinator.claims import Claims
from paceline.core.coordinator.events import (
    CopiesDiffer,
    Output,
    PlacementDecided,
    StepCommitted,
    StepNews,
)
from paceline.core.coordinator.gate import Gate
from paceline.core.effects import CheckpointFact, Complete, History, Send
from paceline.messages import Chained, Checkpoint, Committed, Ok, Position, Saved, SaveNow, SaveOver
from paceline.types import NodeId, SavedFile

_BETWEEN_S = 1.0  # seconds: the end of a phase makes no checkpoint if the last one began less than this ago


def folder_name(incarnation: int, version: int, term: int = 0) -> str:
    """The folder of a checkpoint; names sort by term, then by incarnation, then by version.

    Term 0, that of a run whose checkpoints are in its own directory, is not part of the name.
    """
    return f"t{term:04d}-" * (term > 0) + f"i{incarnation:04d}-v{version:010d}"


@dataclass(slots=True)
class _Saving:
    checkpoint: Checkpoint
    files: dict[NodeId, tuple[SavedFile, ...]] = field(default_factory=dict)
    chains: dict[int, bytes] = field(default_factory=dict)
    copies: dict[NodeId, dict[int, bytes]] = field(default_factory=dict)
    completing: bool = False

    def differing(self) -> dict[NodeId, frozenset[int]]:
        """The servers whose copies are not equal to those of the primaries, each with the blocks that differ."""
        found = {}
        for node, known in self.copies.items():
            blocks = frozenset(b for b, chain in known.items() if self.chains.get(b, chain) != chain)
            if blocks:
                found[node] = blocks
        return found


class Checkpoints:
    """Decides when a checkpoint begins, and collects its parts. At most one is under way: `saving` is its version.

    `kept` are the complete checkpoints. `warning` says why the last checkpoint is not complete.
    """

    def __init__(self, tables: Tables, claims: Claims, complete: Sequence[Checkpoint] = ()) -> None:
        self.kept = KeptCheckpoints(tables, complete)
        self.saving: int | None = None
        self.warning = ""
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._placed = tables.placed
        self._rounds = tables.rounds
        self._gate = tables.gate
        self._claims = claims
        self._saving: _Saving | None = None
        self._completing: dict[str, Complete] = {}
        self._last_version = 0
        self._last_at = 0.0
        self._tried = -1  # the last version for which a checkpoint began
        self._told_at = 0.0

    def restore(self, history: History) -> list[Output]:
        """Start without a checkpoint under way. With `checkpoint_s`, the next one is due at once."""
        newest, spec = self.newest, self._identity.spec
        self._last_version = 0 if newest is None else newest.position.version
        self._last_at = self._clock.now - spec.checkpoint_s
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Give up the checkpoint that is under way."""
        self._saving = self.saving = None
        self._last_version = max(0, self._log.version)
        self._last_at = self._clock.now
        self._tried = -1
        return []

    @property
    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return self.kept.complete[-1] if self.kept.complete else None

    @property
    def settled(self) -> bool:
        """Whether no checkpoint is under way."""
        return self._saving is None

    @property
    def every(self) -> tuple[int, float]:
        """A checkpoint is due every so many versions, or every so many seconds; 0 switches a rule off."""
        spec = self._identity.spec
        return self._phases.checkpoints(self._log.watermark.low) or (spec.checkpoint_steps, spec.checkpoint_s)

    def drop_after(self, folder: str) -> None:
        """Forget the checkpoints after the one in `folder`."""
        self.kept.forget([c.folder for c in self.kept.complete if c.folder > folder])

    def drop_damaged(self, folder: str, problem: str) -> None:
        """Forget the checkpoint in `folder`, which cannot be loaded; `problem` becomes the warning."""
        self.kept.forget([folder])
        self.warning = problem

    # ------------------------------------------------------------ the beginning of a checkpoint

    def is_due(self, version: int, *, last: bool) -> bool:
        """Whether `version` goes to a checkpoint; `last` is true for the last version of a phase."""
        if self._saving is not None or version < 1 or not any(self.every):
            return False
        if self.kept.metric and self.kept.may_be_best(version, last=last):
            return True
        (steps, seconds), age_s = self.every, self._clock.now - self._last_at
        if steps and version - self._last_version >= steps:
            return True
        return bool(seconds and age_s >= seconds) or (last and age_s >= _BETWEEN_S)

    def begin(self, event: StepCommitted) -> list[Output]:
        """Begin a checkpoint of the committed version, before the servers are told; `hold` follows."""
        if event.save:
            self._begin(event.commit.version)
        return []

    def hold(self, event: StepCommitted) -> list[Output]:
        """Record the position of the checkpoint: the other machines have handled the commit by now."""
        if event.save:
            self._hold()
        return []

    def _begin(self, version: int) -> None:
        self.saving, self._last_version, self._last_at = version, version, self._clock.now
        self._tried, self._told_at = version, self._clock.now

    def _hold(self) -> None:
        folder = folder_name(self._incarnation.number, self._log.version, self._identity.spec.term)
        self._saving = _Saving(Checkpoint(folder, self._position()))

    def _position(self) -> Position:
        log, rounds, job = self._log, self._rounds, self._identity.job
        assert job is not None
        return Position(
            incarnation=self._incarnation.number,
            version=log.version,
            watermark=log.watermark.low,
            above=log.watermark.above,
            segments=tuple(self._phases.schedule.segments),
            phases=tuple(phase.entry for phase in self._phases.phases),
            validators=tuple(rounds.validators),
            job=job,
            metrics={name: measured.value for name, measured in rounds.metrics().items()},
            results=tuple((n, version, dict(values)) for n, version, values in rounds.results()),
            logs=dict(log.values),
            samples=log.samples,
            empty=log.skipped_slots,
            claims=self._claims.finished,
        )

    def save_now(self, sender: NodeId, message: SaveNow) -> list[Output]:
        """Begin a checkpoint of the last version as `finish` does: the launcher is about to end the run."""
        return [Send(sender, Ok(message.req)), *([] if self._identity.failure else self.finish())]

    def tick(self) -> list[Output]:
        """Between two phases, make up for a checkpoint that was not begun when the phase ended.

        It was not begun if another one was under way, or had begun a moment before. In a phase the next commit makes up
        for it; after a phase there may be no commit for a long time. For the same reason the order to save is repeated.
        """
        version, blocked = self._log.version, self._identity.failure is not None or self._incarnation.awaited
        if self._phases.open is not None or blocked:
            return []
        saving = self._saving
        if saving is None:
            return self.finish() if self._tried != version and self.is_due(version, last=True) else []
        if saving.completing or self.saving != version or self._clock.now < self._told_at + _BETWEEN_S:
            return []
        # The order may be lost with the session of a server.
        assert self._log.last is not None
        self._told_at = self._clock.now
        announcement = Committed(self._identity.generation, self._placed.epoch, self._log.last, save=True)
        return [Send(server, announcement) for server in self._placed.owners if server not in saving.files]

    def finish(self) -> list[Output]:
        """Begin a checkpoint of the last version, unless there is one or one is under way."""
        log, last, newest = self._log, self._log.last, self.newest
        is_idle = any(self.every) and self._saving is None and self._placed.placement is not None
        if not is_idle or last is None or log.version < 1:
            return []
        if newest is not None and newest.position.version == log.version:
            return []
        if (last.incarnation, last.version) != (self._incarnation.number, log.version):
            return []
        self._begin(log.version)
        self._hold()
        announcement = Committed(self._identity.generation, self._placed.epoch, last, save=True)
        return [Send(server, announcement) for server in self._placed.holders]

    # ------------------------------------------------------------ the parts of a checkpoint

    def saved(self, sender: NodeId, message: Saved) -> list[Output]:
        """Take the part that a server has written, or give up if it could not; after the last part, complete it."""
        saving = self._saving
        if saving is None or not self._is_of_saving(message):
            return [Send(sender, SaveOver(self._identity.generation, message.incarnation, message.version))]
        if saving.completing or sender not in self._placed.owners:
            return []
        if message.problem:
            over = self._give_up(saving, f"{self._members.name(sender)}: {message.problem}")
            return over + _held_back(self._gate, self.kept)
        saving.files[sender] = message.files
        saving.chains.update(message.chains)
        if found := saving.differing():
            return [CopiesDiffer(found)]
        if len(saving.files) < len(self._placed.owners):
            return []
        assert self._identity.model is not None
        saving.completing = True
        files = tuple(file for server in sorted(saving.files) for file in saving.files[server])
        chains = tuple(saving.chains[b].hex() for b in range(len(self._identity.blocks)))
        drop = tuple(c.folder for c in self.kept.surplus([*self.kept.complete, saving.checkpoint]))
        effect = Complete(saving.checkpoint, self._identity.model, files, chains, drop)
        self._completing[saving.checkpoint.folder] = effect
        return [effect]

    def chained(self, sender: NodeId, message: Chained) -> list[Output]:
        """Compare the hash chains that a backup sends for the version being saved with those of the primaries."""
        saving = self._saving
        if saving is None or not self._is_of_saving(message):
            return []
        saving.copies[sender] = dict(message.chains)
        found = saving.differing()
        return [CopiesDiffer(found)] if found else []

    def _is_of_saving(self, message: Saved | Chained) -> bool:
        return self._placed.is_current(message.incarnation, message.epoch) and message.version == self.saving

    # ------------------------------------------------------------ the end of a checkpoint

    def void(self, event: PlacementDecided) -> list[Output]:
        """Give up a checkpoint whose parts are not all written: blocks change servers. The next one is due at once."""
        if self._saving is None or self._saving.completing:
            return []
        spec = self._identity.spec
        self._last_at = self._clock.now - spec.checkpoint_s
        self._last_version -= spec.checkpoint_steps
        self._tried = -1
        return self._over(self._saving)

    def completed(self, folder: str, problem: str) -> list[Output]:
        """End the checkpoint in `folder`: it is complete, or `problem` says why it is not."""
        saving, effect = self._saving, self._completing.pop(folder, None)
        out: list[Output] = []
        if effect is not None and not problem:  # it counts even if the job was rewound meanwhile
            self.warning = ""
            out = [CheckpointFact(folder), *self.kept.add(effect.checkpoint, effect.drop)]
        if saving is None or effect is None or saving.checkpoint is not effect.checkpoint:
            return out
        out += self._give_up(saving, problem) if problem else self._over(saving)
        return out + _held_back(self._gate, self.kept)

    def _give_up(self, saving: _Saving, problem: str) -> list[Output]:
        older = f"{self.newest.folder} is kept" if self.newest is not None else "there is no older one"
        self.warning = f"no checkpoint of version {saving.checkpoint.position.version}: {problem}; {older}"
        return self._over(saving)

    def _over(self, saving: _Saving) -> list[Output]:
        self._saving = self.saving = None
        return self.tell_over(saving.checkpoint.position.version)

    def tell_over(self, version: int | None) -> list[Output]:
        """Tell the primaries to stop saving `version`; None if no version is being saved."""
        if version is None:
            return []
        over = SaveOver(self._identity.generation, self._incarnation.number, version)
        return [Send(server, over) for server in self._placed.owners]


def _held_back(gate: Gate, kept: KeptCheckpoints) -> list[Output]:
    """The steps whose commits may have waited for the checkpoint that was under way."""
    return [StepNews(step) for step in gate.steps()] if kept.metric else []
