"""The rows of a log go to a storage piece by piece, and make the same log again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from tests.kit.checkpoint_files import complete, outcome, taken
from tests.kit.log_rows import FACTS, POSITION, chosen, commit, write

from paceline.checkpoint.manifest import LogTip, folder_name, read_manifest
from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.coordinator import log_parts
from paceline.coordinator.checkpoint_completion import CheckpointCompletion, HeldPlace
from paceline.coordinator.log_check import check_log
from paceline.coordinator.log_parts import TIP, Reached, removable, restore_log, write_new_rows
from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import LogStore
from paceline.coordinator.tables import SCHEMA
from paceline.core.effects import ChoiceFact, EvaluationRow, FactRow, IncarnationFact, LogRow
from paceline.errors import StateError
from paceline.types import INIT_STEP


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "log.sqlite")
    yield made
    made.close()


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "ckpt" if request.param == "local" else f"memory://{tmp_path.name}")


def tables(path: Path) -> dict[str, list[object]]:
    """All rows but those that are never kept: choices of attempts, and what a log holds besides rows."""
    with closing(sqlite3.connect(path)) as db:
        names = ("commits", "logs", "evaluations", "hypers", "names")
        found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}
        found["rowids"] = db.execute("SELECT rowid FROM logs").fetchall()
        kept = f"SELECT * FROM facts WHERE kind != '{ChoiceFact.__name__}'"
        return found | {"facts": db.execute(kept).fetchall()}


def grow(log: LogStore, first: int, last: int) -> None:
    for version in range(first, last + 1):
        write(log, chosen(version, 0))
        write(log, commit(version), LogRow(0, version, version - 1, {"loss": 1.0 / version}))


def test_a_restored_log_has_every_row(log: LogStore, storage: Storage, tmp_path: Path) -> None:
    write(log, *[FactRow(0, -1, fact) for fact in FACTS if not isinstance(fact, IncarnationFact)])
    write(log, commit(0, INIT_STEP))
    grow(log, 1, 4)
    first = write_new_rows(storage, log.path, Reached(), 1)
    grow(log, 5, 6)
    write(log, EvaluationRow(0, 6, 5, "accuracy", {"accuracy": 0.5}, 0))
    write(log, FactRow(1, 6, IncarnationFact(1, "i0000-v0000000004", POSITION, "lost")), commit(5, incarnation=1))
    log.put("notes", "{}")
    second = write_new_rows(storage, log.path, first, 1)
    assert second.tip is not None
    assert len(storage.files("log")) == 2
    new = tmp_path / "new.sqlite"
    restore_log(storage, second.tip, new)
    assert tables(new) == tables(log.path)
    assert check_log(new, (1, 5)).problem == ""
    with LogReader(new) as reader:
        assert reader.get("generation") == str(log.generation)
        assert reader.get("notes") == "{}"
        assert msgspec.json.decode(reader.get(TIP) or "", type=Reached) == second
        assert not [row for row in reader.facts() if isinstance(row.fact, ChoiceFact)]
    resumed = LogStore(new)
    assert resumed.generation == log.generation + 1
    write(resumed, commit(6, incarnation=1))
    third = write_new_rows(storage, new, second, 2)
    resumed.close()
    assert third.tip is not None
    restore_log(storage, third.tip, tmp_path / "third.sqlite")
    assert tables(tmp_path / "third.sqlite") == tables(new)


def test_only_new_rows_are_written(log: LogStore, storage: Storage) -> None:
    write(log, commit(0, INIT_STEP))
    grow(log, 1, 300)
    reached = write_new_rows(storage, log.path, Reached(), 1)
    assert write_new_rows(storage, log.path, reached, 1) == reached, "nothing is new"
    grow(log, 301, 302)
    reached = write_new_rows(storage, log.path, reached, 1)
    large, small = (len(storage.read(f"log/{name}")) for name in storage.files("log"))
    assert small < large / 20


def test_a_fact_that_takes_the_number_of_a_removed_choice_is_not_missed(
    log: LogStore, storage: Storage, tmp_path: Path
) -> None:
    write(log, FactRow(0, -1, FACTS[0]), chosen(0, 0))
    reached = write_new_rows(storage, log.path, Reached(), 1)
    write(log, commit(1))  # removes the choice, whose number is free again
    write(log, FactRow(0, 1, FACTS[7]))
    reached = write_new_rows(storage, log.path, reached, 1)
    assert reached.tip is not None
    restore_log(storage, reached.tip, tmp_path / "new.sqlite")
    with LogReader(tmp_path / "new.sqlite") as reader:
        assert [row.fact for row in reader.facts()] == [FACTS[0], FACTS[7]]


def test_a_long_log_goes_in_several_files(
    log: LogStore, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_parts, "_ROWS", 10)
    write(log, commit(0, INIT_STEP))
    grow(log, 1, 95)
    reached = write_new_rows(storage, log.path, Reached(), 1)
    assert len(storage.files("log")) == 10
    assert reached.tip is not None
    restore_log(storage, reached.tip, tmp_path / "new.sqlite")
    assert tables(tmp_path / "new.sqlite") == tables(log.path)


def test_a_missing_or_damaged_file_is_named_and_leaves_no_log(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    write(log, commit(0, INIT_STEP))
    grow(log, 1, 20)
    first = write_new_rows(storage, log.path, Reached(), 1)
    grow(log, 21, 22)
    second = write_new_rows(storage, log.path, first, 1)
    assert first.tip is not None
    assert second.tip is not None
    new = tmp_path / "new.sqlite"
    path = tmp_path / "ckpt" / "log" / first.tip.name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StateError, match=f"{first.tip.name} at .* is damaged"):
        restore_log(storage, second.tip, new)
    path.unlink()
    with pytest.raises(StateError, match=f"{first.tip.name} at .* cannot be read"):
        restore_log(storage, second.tip, new)
    with pytest.raises(StateError, match="not the name"):
        restore_log(storage, LogTip("../../token", "0" * 64), new)
    assert not new.exists()
    new.write_bytes(b"another")
    with pytest.raises(StateError, match="exists"):
        restore_log(storage, second.tip, new)
    assert new.read_bytes() == b"another"


def test_a_file_with_other_rows_is_refused(log: LogStore, storage: Storage, tmp_path: Path) -> None:
    for rows in ({"sqlite_master": [(1,)]}, {"commits": [(1, 2)]}, {"facts; DROP TABLE meta": [(1,)]}):
        part = log_parts._Part(SCHEMA, None, 1, {}, rows)
        content = msgspec.msgpack.encode(part)
        name = "t0001-00000001-00000000.rows"
        with storage.create(f"log/{name}") as file:
            file.write(content)
        tip = LogTip(name, sha256(content).hexdigest())
        with pytest.raises(StateError, match="none of a log"):
            restore_log(storage, tip, tmp_path / "new.sqlite")


def test_each_checkpoint_stands_on_the_rows_up_to_it(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    place = HeldPlace(taken(storage), dict)
    keeper = CheckpointCompletion(storage, log.path, log.generation, place)
    write(log, commit(0, INIT_STEP))
    for version in (1, 2, 3):
        grow(log, version, version)
        keeper.complete(complete(storage, version, term=1))
        assert outcome(keeper)[1] == ""
    for version in (1, 2, 3):
        tip = read_manifest(storage, folder_name(0, version, 1)).log
        assert tip is not None
        restore_log(storage, tip, tmp_path / f"{version}.sqlite")
        with LogReader(tmp_path / f"{version}.sqlite") as reader:
            assert [c.version for c in reader.commits()] == list(range(version + 1))


# ---------------------------------------------------------------- old files are joined


KEPT = 4


class Place:
    """A place of checkpoints, and the coordinator that completes them and keeps the last `KEPT`."""

    def __init__(self, log: LogStore, storage: LocalStorage) -> None:
        self.log, self.storage = log, storage
        self.term = taken(storage)
        self.version = 0
        self.keeper = CheckpointCompletion(storage, log.path, log.generation, HeldPlace(self.term, dict))

    def checkpoint(self, *, durable: bool = True) -> str:
        """Complete a checkpoint and drop the oldest; returns the problem. `durable`: the log learns of it."""
        self.version += 1
        grow(self.log, self.version, self.version)
        number = self.term.number
        drop = [folder_name(0, self.version - KEPT, number)] if self.version > KEPT else []
        self.keeper.complete(complete(self.storage, self.version, *drop, term=number))
        problem = outcome(self.keeper)[1]
        if durable and not problem:
            self.log.put(TIP, msgspec.json.encode(self.keeper.reached).decode())
        return problem

    def durable(self) -> Reached:
        """What the log says of the files."""
        with LogReader(self.log.path) as reader:
            return msgspec.json.decode(reader.get(TIP) or "{}", type=Reached)

    def restart(self) -> None:
        """Start the coordinator again: it knows what the log says."""
        place = HeldPlace(self.term, dict)
        self.keeper = CheckpointCompletion(self.storage, self.log.path, self.log.generation, place, self.durable())

    def check(self, folder: Path) -> None:
        """Check that each checkpoint stands on all rows up to it."""
        for version in range(max(1, self.version - KEPT + 1), self.version + 1):
            tip = read_manifest(self.storage, folder_name(0, version, self.term.number)).log
            assert tip is not None
            new = folder / f"{version}-{self.version}.sqlite"
            restore_log(self.storage, tip, new)
            with LogReader(new) as reader:
                assert [c.version for c in reader.commits()] == list(range(version + 1))
            new.unlink()


@pytest.fixture
def place(log: LogStore, tmp_path: Path) -> Place:
    write(log, commit(0, INIT_STEP))
    return Place(log, LocalStorage(tmp_path / "ckpt"))


def test_many_checkpoints_leave_few_files(place: Place, tmp_path: Path) -> None:
    most = 0
    for number in range(50):
        assert place.checkpoint() == ""
        if number % 3 == 0:
            place.check(tmp_path)
        most = max(most, len(place.storage.files("log")))
    assert most < 20
    assert len(place.keeper.reached.links) < 10


def test_files_are_removed_only_once_the_log_says_that_they_are_retired(place: Place, tmp_path: Path) -> None:
    """A coordinator that dies after a checkpoint, and before its log knows of it, goes on from the chain before."""
    for number in range(28):
        assert place.checkpoint(durable=number % 9 == 0) == ""
        assert {link.tip.name for link in place.durable().links} <= set(place.storage.files("log"))
        if number % 9 == 8:
            place.restart()
            place.check(tmp_path)


def test_a_restored_log_goes_on_joining(place: Place, tmp_path: Path) -> None:
    for _ in range(20):
        place.checkpoint()
    tip = place.keeper.reached.tip
    assert tip is not None
    restore_log(place.storage, tip, tmp_path / "new.sqlite")
    with LogReader(tmp_path / "new.sqlite") as reader:
        reached = msgspec.json.decode(reader.get(TIP) or "", type=Reached)
    assert reached.links == place.keeper.reached.links


def test_a_deposed_run_removes_no_file_of_the_log(place: Place) -> None:
    for _ in range(9):
        place.checkpoint()
    for version in range(1, place.version):
        place.storage.remove(folder_name(0, version, 1))
    assert removable(place.keeper.reached, place.storage.folders())
    files = place.storage.files("log")
    taken(place.storage, "another run")
    place.keeper._remove_retired(place.storage)
    assert place.storage.files("log") == files
    assert "term" in place.checkpoint()


def test_a_chain_of_an_earlier_version_is_kept_as_it_is(place: Place, tmp_path: Path) -> None:
    for _ in range(5):
        place.checkpoint()
    reached = place.keeper.reached
    files = {link.tip.name for link in reached.links}
    place.keeper.reached = Reached(reached.tip, reached.rows, reached.number)
    for _ in range(10):
        place.checkpoint()
    place.check(tmp_path)
    assert files <= set(place.storage.files("log"))
