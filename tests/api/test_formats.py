"""The formats on disk have numbers, and tests/fixtures has a run of each number that the current code resumes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from paceline.checkpoint.manifest import FORMAT
from paceline.coordinator.tables import SCHEMA

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HOW = "a change of a format adds a directory to tests/fixtures; see the README there"


def runs() -> list[Path]:
    return sorted(FIXTURES.glob("*/run"))


def schema_of(run: Path) -> int:
    with closing(sqlite3.connect(f"file:{run / 'log.sqlite'}?mode=ro&immutable=1", uri=True)) as log:
        return int(dict(log.execute("SELECT * FROM meta"))["schema"])


def formats_of(run: Path) -> set[int]:
    return {json.loads(file.read_text())["format"] for file in run.glob("checkpoints/*/manifest.json")}


def test_the_numbers_of_the_formats_are_frozen() -> None:
    assert (SCHEMA, FORMAT) == (2, 1), HOW


def test_every_format_has_a_fixture() -> None:
    assert SCHEMA in {schema_of(run) for run in runs()}, HOW
    assert FORMAT in set().union(*map(formats_of, runs())), HOW


def test_fixtures_hold_no_secret_and_no_path_of_a_machine() -> None:
    for run in runs():
        assert not (run / "token").exists()
        plan = json.loads((run / "run.json").read_text())
        assert (plan["script"], plan["cwd"]) == ("train.py", ".")
        content = b"".join(file.read_bytes() for file in run.rglob("*") if file.is_file())
        assert not [place for place in (b"/home/", b"/root/", b"/tmp/", b"/work/") if place in content]
        assert len(content) < 300_000
