"""The files that scripts save on a host: a worker notes each one, and the agent returns it to the launcher."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.runtime.rundir import RunDir


def note_saved(run: RunDir, name: str, path: Path) -> None:
    """Note that the worker called `name` has saved the file `path`."""
    with _notes(run, name).open("a") as file:
        file.write(json.dumps(str(path.absolute())) + "\n")


def take_saved(run: RunDir, name: str) -> list[Path]:
    """The files that were noted for `name` since the last call."""
    notes = _notes(run, name)
    taken = notes.with_suffix(".taken")
    try:
        notes.rename(taken)
    except FileNotFoundError:
        return []
    return [Path(json.loads(line)) for line in taken.read_text().splitlines() if line]


def _notes(run: RunDir, name: str) -> Path:
    return run.path / f"{name}.saved"
