"""Records are derived from the log alone: live, after a kill, or anew, they are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.log_rows import FACTS

from paceline.coordinator import record_files
from paceline.coordinator.reader import LogReader
from paceline.coordinator.record_files import EventFile, event_files, read_events, rebuild
from paceline.coordinator.records import KINDS, START, Record, derive
from paceline.coordinator.store import LogStore
from paceline.core.effects import EvaluationRow, FactRow, MarkFact, StopFact, WarningFact, Write


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    store = LogStore(tmp_path / "log.sqlite")
    yield store
    store.close()


def mark(log: LogStore, at: float) -> None:
    _, logs, evaluations = log.last_rows()
    log.write([Write(FactRow(0, 9, MarkFact(at, logs, evaluations)))])


def grow(log: LogStore, number: int) -> None:
    """Some rows, and sometimes a mark."""
    log.write([Write(FactRow(0, number, WarningFact(f"topic {number}", f"text {number}")))])
    if number % 2:
        log.write([Write(EvaluationRow(0, number, number, "check", {"acc": number / 10, "bad": float("nan")}, 0))])
    if number % 3 == 0:
        mark(log, 100.0 + number)


def follow(run: Path, log: LogStore) -> None:
    """What a coordinator does that starts and is killed."""
    events = EventFile(run)
    with LogReader(log.path) as reader:
        records, _ = derive(reader, events.place)
    events.append(records)


def test_every_kind_of_fact_is_described_or_left_out(tmp_path: Path, log: LogStore) -> None:
    log.write([Write(FactRow(0, 1, fact)) for fact in FACTS])
    log.write([Write(FactRow(0, 1, StopFact("enough", None, 4)))])
    mark(log, 7.0)
    with LogReader(log.path) as reader:
        records, place = derive(reader)
        assert derive(reader, place) == ([], place)
    assert {record.kind for record in records} <= set(KINDS)
    assert records[-1].text == "the job ends before step 4: enough"
    assert {record.at for record in records} == {7.0, 12.5}  # 12.5: a mark among `FACTS`
    assert any(record.text == "worker-0 (a) lost: killed" for record in records)


def test_rows_without_a_mark_are_no_records_yet(tmp_path: Path, log: LogStore) -> None:
    log.write([Write(FactRow(0, 1, WarningFact("a", "a")))])
    with LogReader(log.path) as reader:
        assert derive(reader) == ([], START)
        mark(log, 1.0)
        assert [record.text for record in derive(reader)[0]] == ["a"]


def test_fifty_kills_leave_the_same_records_as_a_rebuild(tmp_path: Path, log: LogStore) -> None:
    rng = random.Random(5)
    for number in range(100):
        grow(log, number)
        if number % 2:
            follow(tmp_path, log)
            file = tmp_path / "events.jsonl"
            if file.exists() and (size := file.stat().st_size):
                with file.open("r+b") as opened:  # a kill cuts the last lines off
                    opened.truncate(max(0, size - rng.randrange(300)))
    mark(log, 500.0)
    follow(tmp_path, log)
    live = read_events(tmp_path)
    assert len(live) == 150
    content = (tmp_path / "events.jsonl").read_bytes()
    assert rebuild(tmp_path, log.path) == 150
    assert (tmp_path / "events.jsonl").read_bytes() == content
    assert next(record.text for record in live if record.kind == "validation") == "version 1: check: acc 0.1, bad nan"


def test_the_files_are_bounded_and_the_oldest_records_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "_LARGEST", 2_000)
    events = EventFile(tmp_path)
    for number in range(200):
        events.append([Record(f"f{number}", "warning", 1.0, 0, 0, f"text {number}")])
    files = event_files(tmp_path)
    assert [file.name for file in files] == ["events.3.jsonl", "events.2.jsonl", "events.1.jsonl", "events.jsonl"]
    assert all(file.stat().st_size <= 2_000 for file in files)
    kept = [int(record.row[1:]) for record in read_events(tmp_path)]
    assert kept == list(range(kept[0], 200))
    assert EventFile(tmp_path).place.fact == 199
