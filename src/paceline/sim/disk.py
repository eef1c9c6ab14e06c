"""The disk of the simulated job: the log, and folders of checkpoints that may be incomplete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.effects import EvaluationRow, FactRow, History, IncarnationFact, LogRow, Write
from paceline.core.lineage import committed_steps, is_shared, shared_versions, start_of
from paceline.errors import CheckpointError
from paceline.messages import Checkpoint
from paceline.types import INIT_STEP, Commit

if TYPE_CHECKING:
    from paceline.sim.symbols import Value

_TAIL = 4096


@dataclass(slots=True)
class Folder:
    """The files of a checkpoint that are written so far; `checkpoint` is set when the checkpoint is complete."""

    values: dict[int, Value] = field(default_factory=dict)
    chains: tuple[bytes, ...] = ()
    checkpoint: Checkpoint | None = None
    damaged: bool = False


class Disk:
    """All rows of the log in the order of their writes, and the folders of checkpoints."""

    def __init__(self) -> None:
        self.facts: list[FactRow] = []
        self.commits: dict[int, list[Commit]] = {}
        self.evaluations: list[EvaluationRow] = []
        self.folders: dict[str, Folder] = {}

    def write(self, write: Write) -> None:
        """Add a row to the log."""
        match write.row:
            case Commit() as commit:
                self.commits.setdefault(commit.incarnation, []).append(commit)
            case FactRow() as row:
                self.facts.append(row)
            case EvaluationRow() as row:
                self.evaluations.append(row)
            case LogRow():
                pass

    def history(self) -> History:
        """The history that a starting coordinator reads."""
        begun = [row.fact for row in self.facts if isinstance(row.fact, IncarnationFact)]
        newest, shared = begun[-1] if begun else None, shared_versions(begun)
        number = 0 if newest is None else newest.number
        own = self.commits.get(number, [])
        position = None if newest is None else newest.position
        low, above = (0, ()) if position is None else (position.watermark, position.above)
        steps = sorted((c.step for c in own if c.step != INIT_STEP), reverse=True)
        low, above = committed_steps(low, above, len(steps), steps)
        return History(
            facts=tuple(self.facts),
            incarnation=number,
            version=own[-1].version if own else start_of(newest),
            watermark=low,
            above=above,
            tail=tuple(own[-_TAIL:]),
            samples=sum(c.samples for c in own),
            empty=sum(c.empty for c in own),
            max_staleness=max((c.staleness for c in own), default=0),
            max_lag=max((c.lag for c in own), default=0),
            evaluations=tuple(e for e in self.evaluations if is_shared(shared, e.incarnation, e.version)),
        )

    # ------------------------------------------------------------ checkpoints

    def put(self, folder: str, values: Mapping[int, Value]) -> None:
        """Store the blocks that a server writes to `folder`."""
        self.folders.setdefault(folder, Folder()).values.update(values)

    def complete(self, checkpoint: Checkpoint, chains: tuple[str, ...], drop: tuple[str, ...]) -> None:
        """Write the manifest and the marker file of `checkpoint`, then remove the folders in `drop`."""
        entry = self.folders[checkpoint.folder]
        entry.chains, entry.checkpoint = tuple(bytes.fromhex(c) for c in chains), checkpoint
        self.drop(drop)

    def drop(self, folders: tuple[str, ...]) -> None:
        """Remove checkpoints."""
        for folder in folders:
            self.folders.pop(folder, None)

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, damaged ones too: only `read` finds out that a checkpoint is damaged."""
        return [f.checkpoint for _, f in sorted(self.folders.items()) if f.checkpoint is not None]

    def damage(self) -> None:
        """Make the newest complete checkpoint unreadable."""
        whole = [f for f in self.folders.values() if f.checkpoint is not None]
        if whole:
            whole[-1].damaged = True

    def read(self, folder: str, blocks: Mapping[int, object]) -> tuple[dict[int, Value], dict[int, bytes]]:
        """Read the values and hash chains of `blocks` from the checkpoint in `folder`.

        Raises:
            CheckpointError: the checkpoint is missing, incomplete or damaged.
        """
        found = self.folders.get(folder)
        if found is None or found.checkpoint is None:
            raise CheckpointError(folder, "incomplete: COMPLETE is missing")
        if found.damaged:
            raise CheckpointError(folder, "a shard is damaged: its SHA-256 is not the manifest's")
        return {b: found.values[b] for b in blocks}, {b: found.chains[b] for b in blocks}
