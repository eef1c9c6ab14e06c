"""Run directories made from stories, and commands that run in the process of the test."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner
from tests.kit.story import Story

from paceline.checkpoint.manifest import FORMAT, Manifest, write_manifest
from paceline.checkpoint.storage import LocalStorage
from paceline.cli.main import cli
from paceline.coordinator.store import LogStore
from paceline.core.effects import Write
from paceline.runtime.rundir import RunDir
from paceline.types import ModelSpec, OptimizerSpec, SavedFile

MODEL = ModelSpec((), OptimizerSpec("SGD", ()))


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended, with what it printed."""

    code: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def paceline(*words: str | Path) -> Done:
    """Run a command in this process. An exception that the command raises is raised here."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.output.splitlines())


def told(story: Story, path: Path) -> RunDir:
    """Make a run directory with the log and the checkpoints of a story."""
    run = RunDir.create(path)
    log = LogStore(run.log_file)
    log.write([Write(row) for row in story.facts])
    log.write([Write(row) for row in story.commits])
    log.close()
    storage = LocalStorage(Path(run.checkpoints))
    for claim in story.checkpoints:
        content = claim.folder.encode() * 100
        with storage.create(f"{claim.folder}/server-0-0000.safetensors") as file:
            file.write(content)
        digest = hashlib.sha256(content).hexdigest()
        files = (SavedFile("server-0-0000.safetensors", len(content), digest, tuple(range(5))),)
        write_manifest(storage, claim.folder, Manifest(FORMAT, MODEL, claim.position, files, claim.chains))
    return run


def alter(run: RunDir, *statements: str) -> None:
    """Execute SQL statements on the log of a run."""
    db = sqlite3.connect(run.log_file, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def overwrite(file: Path, start: int, stop: int) -> None:
    """Overwrite the bytes of a file from `start` to `stop`, as a defect of a disk does."""
    content = bytearray(file.read_bytes())
    content[start:stop] = b"\xa5" * len(content[start:stop])
    file.write_bytes(content)


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
