"""The durable log: every finished write survives a kill, and only the newest generation writes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from math import inf, isnan, nan
from pathlib import Path

import pytest
from tests.kit.log_rows import FACTS, HYPER, POSITION, chosen, commit, write

from paceline.coordinator.history import TAIL
from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import LogStore, sync_log
from paceline.core.effects import (
    AnyFact,
    ClaimFact,
    EvaluationRow,
    FactRow,
    IncarnationFact,
    LogRow,
)
from paceline.core.window import Watermark
from paceline.errors import DeposedError, StateError
from paceline.types import (
    INIT_STEP,
    Fence,
    Hyper,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


def test_every_kind_of_row_is_read_back_unchanged(path: Path) -> None:
    assert {type(fact) for fact in FACTS} == set(AnyFact.__args__)
    rows = [FactRow(n, n + 1, fact) for n, fact in enumerate(FACTS)]
    commits = [
        commit(0, INIT_STEP, fences=(Fence(1, 1),)),
        commit(1, pin=True, scale=0.5, staleness=2, lag=3, empty=1, hyper=({"lr": inf},)),
        commit(2, variants=(((0, 3), (Fence(1, 8), Fence(1, 5))), ((1,), (Fence(1, 4), Fence(1, 9))))),
    ]
    log = LogStore(path)
    write(log, *rows, *commits, EvaluationRow(0, 2, 1, "accuracy", {"accuracy": 0.5, "loss": inf}, 3))
    log.put("summary", "done")
    log.close()
    with LogReader(path) as reader:
        assert repr(reader.facts()) == repr(rows), "nan is not equal to itself"
        assert reader.commits() == commits
        assert reader.evaluations() == [EvaluationRow(0, 2, 1, "accuracy", {"accuracy": 0.5, "loss": inf}, 3)]
        assert reader.get("summary") == "done"
        assert reader.get("nothing") is None


def test_an_older_generation_cannot_write(path: Path) -> None:
    old = LogStore(path)
    write(old, commit(0, INIT_STEP))
    new = LogStore(path)
    assert new.generation == old.generation + 1
    with pytest.raises(DeposedError, match=f"generation {old.generation} may not write"):
        write(old, commit(1))
    with pytest.raises(DeposedError):
        old.put("summary", "mine")
    write(new, commit(1))
    old.close()
    new.close()
    with LogReader(path) as reader:
        assert [c.version for c in reader.commits()] == [0, 1]
        assert reader.get("summary") is None


def test_a_commit_without_other_rows_is_one_statement(path: Path) -> None:
    log = LogStore(path)
    write(log, commit(0, INIT_STEP))
    statements: list[str] = []
    log._db.set_trace_callback(statements.append)
    write(log, commit(1))
    assert [s.split()[0] for s in statements if not s.startswith("--")] == ["INSERT"]
    log.close()
    with LogReader(path) as reader:
        assert [c.version for c in reader.commits()] == [0, 1]


def test_a_failed_write_leaves_no_row(path: Path) -> None:
    log = LogStore(path)
    fresh: Hyper = ({"lr": 0.5},)
    write(log, commit(0, INIT_STEP))
    with pytest.raises(StateError, match=r"cannot write to the log .*log.sqlite: UNIQUE"):
        write(log, commit(1, hyper=fresh), LogRow(0, 1, 0, {"new": 1.0}), chosen(7, 0), commit(0))
    assert log.history().facts == ()
    write(log, commit(1, hyper=fresh), LogRow(0, 1, 0, {"new": 1.0}), commit(8, 7))
    log.close()
    with LogReader(path) as reader:
        assert [c.hyper for c in reader.commits()] == [HYPER, fresh, HYPER], (
            "the second write stores the hyper-parameters that the failed write did not"
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("DELETE FROM meta WHERE key IN ('schema', 'written_by')", r"Paceline 0.1.0 or older \(schema 1\)"),
        ("UPDATE meta SET value = '99' WHERE key = 'schema'", r"Paceline 7.0.0 \(schema 99\)"),
        ("DROP TABLE meta", "is not the log of a run"),
    ],
)
def test_a_log_of_another_version_is_refused_by_name(path: Path, change: str, named: str) -> None:
    LogStore(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE meta SET value = '7.0.0' WHERE key = 'written_by'")
    db.execute(change)
    db.close()
    before = path.read_bytes()
    for opens in (LogStore, LogReader):
        with pytest.raises(StateError, match=rf"log.sqlite.*{named}"):
            opens(path)
    assert path.read_bytes() == before


def test_a_file_that_is_not_a_log_is_refused_by_name(path: Path) -> None:
    with pytest.raises(StateError, match=r"no log at .*log.sqlite"):
        LogReader(path)
    path.touch()
    with pytest.raises(StateError, match=r"log.sqlite is empty"):
        LogReader(path)
    with pytest.raises(StateError, match=r"cannot open the log /nowhere/log.sqlite"):
        LogStore(Path("/nowhere/log.sqlite"))
    path.write_bytes(b"something else entirely, and quite long enough" * 99)
    for opens in (LogStore, LogReader):
        with pytest.raises(StateError, match=r"log.sqlite: file is not a database"):
            opens(path)


# ---------------------------------------------------------------- history


def test_an_empty_log_has_no_history(path: Path) -> None:
    log = LogStore(path)
    found = log.history()
    log.close()
    assert (found.incarnation, found.version, found.watermark, found.above) == (0, -1, 0, ())
    assert (found.tail, found.facts, found.evaluations) == ((), (), ())


@pytest.mark.parametrize("seed", range(10))
def test_the_history_equals_a_count_over_all_commits(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = LogStore(path)
    mark = Watermark()
    steps = sorted(range(3000), key=lambda step: step + rng.choice([0, 0, 0, rng.uniform(0, 2500)]))
    steps = [INIT_STEP, *steps[: rng.randrange(1, 3000)]]
    commits = [
        commit(v, s, samples=rng.random(), empty=rng.randrange(3), staleness=rng.randrange(9), lag=rng.randrange(9))
        for v, s in enumerate(steps)
    ]
    for step in steps:
        mark.add(step)
    write(log, *commits)
    found = log.history()
    log.close()
    above = tuple(s for s in sorted(steps) if s >= mark.low)
    assert (found.version, found.watermark, found.above) == (len(steps) - 1, mark.low, above)
    assert found.samples == pytest.approx(sum(c.samples for c in commits))
    assert found.empty == sum(c.empty for c in commits)
    assert found.max_staleness == max(c.staleness for c in commits)
    assert found.max_lag == max(c.lag for c in commits)
    assert found.tail == tuple(commits[-TAIL:])


def test_the_history_covers_the_newest_incarnation_from_its_beginning(path: Path) -> None:
    log = LogStore(path)
    begun = FactRow(1, 4, IncarnationFact(1, "i0000-v0000000004", POSITION, "server-0 died"))
    write(log, *(commit(v, samples=100.0, staleness=50) for v in range(10)))
    write(log, LogRow(0, 9, 8, {"loss": 9.0, "once": 1.0}), EvaluationRow(0, 9, 8, "accuracy", {"accuracy": 0.1}))
    write(log, begun)
    found = log.history()
    assert (found.incarnation, found.version, found.watermark, found.above) == (1, 4, 3, (5, 7))
    assert (found.samples, found.empty, found.max_staleness, found.logs) == (0.0, 0, 0, {})
    assert (found.tail, found.evaluations) == ((), ())
    assert repr(found.facts) == repr((begun,))
    new = [commit(5, 3, incarnation=1), commit(6, 4, incarnation=1), commit(7, 9, incarnation=1)]
    result = EvaluationRow(1, 6, 5, "accuracy", {"accuracy": 0.2})
    write(log, *new, LogRow(1, 5, 3, {"loss": 3.0}), result)
    found = log.history()
    log.close()
    assert (found.version, found.watermark, found.above) == (7, 6, (7, 9))
    assert (found.samples, found.logs, found.evaluations) == (12.0, {"loss": 3.0}, (result,))
    assert found.tail == tuple(new)


def test_history_has_the_newest_value_of_every_name(path: Path) -> None:
    log = LogStore(path)
    write(log, LogRow(0, 1, 0, {"size": 100.0, "loss": 9.0}))
    for version in range(2, 50):
        write(log, LogRow(0, version, version - 1, {"loss": float(version), "rate": nan}))
    found = log.history()
    log.close()
    assert found.logs.keys() == {"size", "loss", "rate"}
    assert (found.logs["size"], found.logs["loss"]) == (100.0, 49.0)
    assert isnan(found.logs["rate"])


def test_a_choice_is_kept_until_its_step_is_committed(path: Path) -> None:
    log = LogStore(path)
    write(log, chosen(3, 0), FactRow(0, 0, ClaimFact("x")), chosen(3, 1), chosen(4, 0))
    log.close()
    log = LogStore(path)  # a restarted coordinator reads them
    write(log, commit(1, 3), chosen(5, 0))
    assert log.history().facts == (FactRow(0, 0, ClaimFact("x")), chosen(4, 0), chosen(5, 0))
    begun = FactRow(1, -1, IncarnationFact(1, "", None, "server-0 died"))
    write(log, begun)
    assert log.history().facts == (FactRow(0, 0, ClaimFact("x")), begun), "an attempt does not outlive its incarnation"
    write(log, commit(1, 4, incarnation=1))
    log.close()


def test_history_does_not_read_every_commit(path: Path) -> None:
    log = LogStore(path)
    write(log, *(commit(v, v if v != 59_990 else 80_000) for v in range(60_000)))
    quick, whole = [], []
    for _ in range(3):
        began = time.process_time()
        found = log.history()
        quick.append(time.process_time() - began)
        with LogReader(path) as reader:
            began = time.process_time()
            reader.commits()
            whole.append(time.process_time() - began)
    log.close()
    assert (found.version, found.watermark, found.above) == (59_999, 59_990, (*range(59_991, 60_000), 80_000))
    assert min(quick) < min(whole) / 2


# ---------------------------------------------------------------- processes

WRITER = """
import sys
from pathlib import Path
from tests.unit.coordinator.test_store import commit, write
from paceline.core.effects import LogRow
from paceline.coordinator.store import LogStore

log = LogStore(Path(sys.argv[1]))
for version in range(log.history().version + 1, 10**9):
    write(log, commit(version), LogRow(0, version, version, {"loss": 1.0}))
    sys.stdout.write(f"{version}\\n")
    sys.stdout.flush()
"""


def _start_writer(path: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))}
    command = [sys.executable, "-c", WRITER, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root)


def test_every_write_that_returned_survives_a_kill(path: Path) -> None:
    rng = random.Random(3)
    written = -1
    for _ in range(4):
        writer = _start_writer(path)
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 2000)):
            written = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split("\n")[:-1]
        writer.stdout.close()
        writer.wait()
        written = int(rest[-1]) if rest else written
        with LogReader(path) as reader:
            versions = [c.version for c in reader.commits()]
        assert len(versions) > written
        assert versions == list(range(len(versions)))
    assert written > 100


def test_a_log_can_be_read_while_it_is_written(path: Path) -> None:
    writer = _start_writer(path)
    assert writer.stdout is not None
    try:
        seen = 0
        for _ in range(30):
            written = int(writer.stdout.readline())
            with LogReader(path) as reader:
                versions = [c.version for c in reader.commits()]
                assert versions == list(range(len(versions)))
                assert len(versions) > max(written, seen - 1)
                with reader.snapshot():
                    assert len(reader.commits()) == len(reader.commits()) >= len(versions)
            seen = len(versions)
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()


READ = """
import os, sys, urllib.parse
from pathlib import Path
from paceline.coordinator.reader import LogReader

if os.geteuid() == 0:
    os.seteuid(65534)  # nothing is read-only to root
with LogReader(Path(sys.argv[1])) as reader:
    sys.stdout.write(str(len(reader.commits())))
"""


@pytest.mark.parametrize("left_by", ["close", "kill"])
def test_a_read_only_copy_of_a_log_can_be_read(path: Path, tmp_path: Path, left_by: str) -> None:
    log = LogStore(path)
    write(log, *(commit(v) for v in range(50)))
    if left_by == "close":
        log.close()
    copy = tmp_path / "read only ?%23"
    copy.mkdir()
    for file in path.parent.glob("log.sqlite*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, copy)
    log.close()
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and "pytest" in str(parent):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    copy.chmod(0o555)
    command = [sys.executable, "-c", READ, str(copy / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    copy.chmod(0o755)
    assert done.stdout == "50", done.stderr
    assert not list(Path("/tmp").glob("paceline-log-*"))


def test_a_reader_does_not_change_the_log(path: Path) -> None:
    log = LogStore(path)
    write(log, commit(0, INIT_STEP))
    log.close()
    before = path.read_bytes()
    reader = LogReader(path)
    assert len(reader.commits()) == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._db.execute("DELETE FROM commits")
    reader.close()
    reader.close()
    assert path.read_bytes() == before
    log = LogStore(path)
    assert log.history().version == 0
    log.close()
    assert [p.name for p in path.parent.iterdir()] == ["log.sqlite"]


def test_the_log_is_synced_while_it_is_open_and_keeps_its_locks(path: Path) -> None:
    log = LogStore(path)
    write(log, commit(0, INIT_STEP))
    assert path.with_name("log.sqlite-wal").stat().st_size > 0
    sync_log(path)
    # If the log had lost its locks, another process that opens and closes it would remove the WAL.
    script = f"import sqlite3; db = sqlite3.connect({str(path)!r}); db.execute('SELECT 1 FROM meta'); db.close()"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert path.with_name("log.sqlite-wal").exists()
    write(log, commit(1))
    with LogReader(path) as reader:
        assert len(reader.commits()) == 2
    log.close()
    sync_log(path)


def test_a_failed_sync_of_the_log_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        sync_log(tmp_path / "file" / "log.sqlite")
