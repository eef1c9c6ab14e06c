"""A log is checked before a run is resumed, and no file changes by that."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.kit.story import eventful
from tests.kit.told_runs import alter, content_of, overwrite, told

from paceline.coordinator.log_check import LogCheck, check_log
from paceline.coordinator.store import LogStore
from paceline.core.effects import Write
from paceline.errors import StateError

NEWEST = (3, 26)
"""The incarnation and version of the newest checkpoint of the story."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return told(eventful(), tmp_path / "run").log_file


def checked(log: Path, at: tuple[int, int] | None = NEWEST) -> LogCheck:
    """Check a log. No file may change, appear or disappear; only the index of a WAL, a cache, is made again."""
    before = content_of(log.parent)
    found = check_log(log, at)
    after = content_of(log.parent)
    assert [name for name in {*before, *after} if before.get(name) != after.get(name)] in ([], ["log.sqlite-shm"])
    assert before.keys() == after.keys()
    return found


def test_a_sound_log_has_no_problem(log: Path) -> None:
    assert checked(log) == LogCheck()
    for at in ((0, 4), (0, 6), (1, 15), None):
        assert checked(log, at) == LogCheck()


def test_a_missing_or_empty_log_is_blank(log: Path) -> None:
    log.write_bytes(b"")
    assert checked(log) == LogCheck(f"the log {log} is empty", blank=True)
    log.unlink()
    assert checked(log) == LogCheck(f"the log {log} is missing", blank=True)


def test_a_damaged_log_is_named_with_what_sqlite_says(log: Path) -> None:
    content = log.read_bytes()
    pages = len(content) // 4096
    for page in range(pages):  # a defect in any page is seen
        log.write_bytes(content)
        overwrite(log, page * 4096, page * 4096 + 4096)
        problem = checked(log).problem
        assert problem.startswith(f"the log {log} is damaged: "), page
        assert "\n" not in problem
    log.write_bytes(content[: 2 * 4096])
    assert "is damaged: database disk image is malformed" in checked(log).problem
    log.write_text("not a database, but text " * 1000)
    assert "is damaged: file is not a database" in checked(log).problem


def test_rows_that_cannot_be_decoded_are_a_damage(log: Path) -> None:
    db = sqlite3.connect(log)
    db.execute("UPDATE facts SET row = x'c1' WHERE kind = 'IncarnationFact'")
    db.commit()
    db.close()
    assert f"the log {log} is damaged: " in checked(log).problem


def test_a_log_must_reach_the_checkpoint(log: Path, tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "other")
    alter(run, "DELETE FROM commits WHERE incarnation = 3 AND version > 24")
    short = checked(run.log_file).problem
    assert short == f"the log {run.log_file} ends at version 24, but the newest checkpoint is version 26"
    alter(run, "DELETE FROM commits WHERE incarnation = 3")
    assert checked(run.log_file).problem.endswith("has no commit, but the newest checkpoint is version 26")
    assert "does not say how incarnation 7 began" in checked(log, (7, 40)).problem
    alter(run, "DELETE FROM commits WHERE incarnation = 0 AND version = 3")
    assert checked(run.log_file, (0, 4)).problem == f"the log {run.log_file} lacks 1 of its commits"


def test_a_wal_that_a_power_cut_left_is_read(tmp_path: Path) -> None:
    story, cut = eventful(), tmp_path / "cut"
    cut.mkdir()
    store = LogStore(tmp_path / "log.sqlite")
    store.write([Write(row) for row in story.facts])
    store.write([Write(row) for row in story.commits])
    for name in ("log.sqlite", "log.sqlite-wal", "log.sqlite-shm"):  # a copy as the disk has it at a power cut
        shutil.copyfile(tmp_path / name, cut / name)
    store.close()
    log = cut / "log.sqlite"
    assert (cut / "log.sqlite-wal").stat().st_size > 0
    assert checked(log) == LogCheck()
    wal = (cut / "log.sqlite-wal").read_bytes()
    (cut / "log.sqlite-shm").unlink()
    assert check_log(log, NEWEST) == LogCheck(), "SQLite makes the index of the WAL again"
    (cut / "log.sqlite-wal").write_bytes(wal[: len(wal) // 2])
    (cut / "log.sqlite-shm").unlink()
    assert check_log(log, NEWEST).problem, "half of the WAL is not enough"
    (cut / "log.sqlite-shm").unlink()
    (cut / "log.sqlite-wal").write_bytes(wal)
    continued = LogStore(log)
    assert continued.history().version == 26, "the check has spoiled nothing"
    continued.close()


def test_the_check_of_a_large_log_ends_in_time(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.coordinator.log_check._INSTRUCTIONS", 10)
    overwrite(log, 5 * 4096, 6 * 4096)
    assert check_log(log, check_s=0.0).problem == "", "what was not read in time counts as undamaged"
    assert check_log(log).problem


def test_a_log_of_another_version_is_refused(log: Path) -> None:
    db = sqlite3.connect(log)
    db.execute("UPDATE meta SET value = '1' WHERE key = 'schema'")
    db.commit()
    db.close()
    with pytest.raises(StateError, match="use that version, or start a new run"):
        check_log(log)
