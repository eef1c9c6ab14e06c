"""Rule 16, one writer of checkpoints: a resume takes their place by a conditional write of a higher term.

Folder names carry the term. Marker, sweep and removal read the term again, and a run with a lower term ends as deposed.
A checkpoint holds no token, and what it holds cannot be unpacked outside of its directory.

Upheld by:
- `checkpoint.terms.take_term` and `checkpoint.storage.LocalStorage.claim`: exactly one run gets a term
- `checkpoint.terms.check_term`, in `coordinator.checkpoint_completion.CheckpointCompletion`: nothing changes afterwards
- `coordinator.service.CoordinatorService.on_tick` and `runtime.roles.coordinator.CoordinatorRole`: the older run ends
- `core.coordinator.checkpoints.folder_name`: two terms never write to one folder
- `engines.bundle.unpack.unpack`
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest
from tests.kit.checkpoint_files import complete, outcome, shard, taken
from tests.kit.placed_job import compute, epoch, ready, small

from paceline.checkpoint.manifest import MARKER, folder_name, list_checkpoints, read_manifest
from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.checkpoint.terms import Term, newest_term, take_term
from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import RoleSpec, SharedSpec
from paceline.coordinator.checkpoint_completion import CheckpointCompletion, HeldPlace
from paceline.coordinator.service import CoordinatorService
from paceline.coordinator.store import LogStore
from paceline.core.effects import Complete
from paceline.errors import DeposedError
from paceline.messages import Saved
from paceline.runtime.exit_codes import EXIT_DEPOSED
from paceline.runtime.roles.coordinator import CoordinatorRole
from paceline.runtime.rundir import RunDir
from paceline.transport.inproc import InprocHub


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "log.sqlite")
    yield made
    made.close()


def keeper(storage: Storage, log: LogStore, term: Term) -> CheckpointCompletion:
    return CheckpointCompletion(storage, log.path, log.generation, HeldPlace(term, lambda: {"script": "train.py"}))


@pytest.mark.parametrize("where", ["local", "memory"])
def test_of_many_runs_that_want_a_term_one_gets_it(where: str, tmp_path: Path) -> None:
    url = str(tmp_path / "ckpt") if where == "local" else f"memory://{tmp_path.name}"
    won: list[Term] = []
    deposed: list[DeposedError] = []
    together = threading.Barrier(8)

    def take() -> None:
        storage = open_storage(url)
        together.wait()
        try:
            won.append(take_term(storage, Term(1, secrets.token_hex(8))))
        except DeposedError as error:
            deposed.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if where == "local":  # the memory of fsspec looks first and writes afterwards, so two may pass one after another
        assert (len(won), len(deposed)) == (1, 7)
    assert newest_term(open_storage(url)) in won


def test_a_term_is_never_taken_twice(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    first = taken(storage)
    with pytest.raises(DeposedError):
        take_term(storage, Term(1, "another key"))
    assert newest_term(storage) == first


def test_a_run_that_is_deposed_while_it_writes_the_log_writes_no_marker(log: LogStore, tmp_path: Path) -> None:
    class Slow(LocalStorage):
        """Another run takes over while the rows of the log are written."""

        @contextmanager
        def create(self, name: str) -> Iterator[IO[bytes]]:
            with super().create(name) as file:
                yield file
            if name.startswith("log/"):
                taken(LocalStorage(tmp_path / "ckpt"), "elsewhere")

    storage = Slow(tmp_path / "ckpt")
    old = keeper(storage, log, taken(storage))
    old.complete(complete(storage, 1, term=1))
    assert "this run is deposed" in outcome(old)[1]
    assert storage.files(folder_name(0, 1, 1)) == ["server-0.safetensors"]


def test_the_older_run_writes_no_marker_and_removes_nothing(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    first = taken(storage)
    old = keeper(storage, log, first)
    for version in (1, 2):
        old.complete(complete(storage, version, term=1))
        assert outcome(old) == (folder_name(0, version, 1), "")
    shard(storage, folder_name(0, 3, 1))  # incomplete
    wanted = complete(storage, 4, folder_name(0, 1, 1), term=1)
    taken(storage, "elsewhere")
    before = sorted(path for path in tmp_path.joinpath("ckpt").rglob("*"))
    old.complete(wanted)
    _, problem = outcome(old)
    assert "this run is deposed" in problem
    old.sweep(folder_name(0, 5, 1))
    old.close()
    assert old.deposed is not None
    assert (old.deposed.mine, old.deposed.durable) == (1, 2)
    after = sorted(path for path in tmp_path.joinpath("ckpt").rglob("*"))
    assert after == before, "no marker, no sweep, no removal"
    assert MARKER not in storage.files(folder_name(0, 4, 1))


def test_a_sweep_and_a_removal_of_the_older_run_change_nothing(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    old = keeper(storage, log, taken(storage))
    shard(storage, folder_name(0, 3, 1))
    taken(storage, "elsewhere")
    old.sweep(folder_name(0, 3, 1))
    deadline = time.monotonic() + 20
    while old.deposed is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert storage.files(folder_name(0, 3, 1)) == ["server-0.safetensors"]


def test_a_term_that_another_run_overwrote_counts_for_that_run_only(log: LogStore, tmp_path: Path) -> None:
    """Without conditional writes, two runs may write the file of one term: the last one holds it."""
    storage = LocalStorage(tmp_path / "ckpt")
    old = keeper(storage, log, taken(storage))
    with storage.create("terms/000001") as file:
        file.write(msgspec.json.encode(Term(1, "another", "elsewhere")))
    old.complete(complete(storage, 1, term=1))
    assert "this run is deposed" in outcome(old)[1]
    assert list_checkpoints(storage, verify=False)[0].incomplete


def test_a_coordinator_that_is_deposed_ends(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    place = HeldPlace(taken(storage), dict)
    port = InprocHub().port("coordinator/1", listen="coordinator")
    service = CoordinatorService(port, ClusterSpec(term=1), log, storage=storage, place=place)
    service.on_tick(0.0)
    taken(storage, "elsewhere")
    service._completion.complete(complete(storage, 1, term=1))
    with pytest.raises(DeposedError, match="this run is deposed"):
        _tick_for(service, 20.0)
    service.close()
    port.close()


def _tick_for(service: CoordinatorService, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        service.on_tick(time.monotonic())
        time.sleep(0.005)


def test_a_coordinator_that_starts_after_it_was_deposed_ends_before_it_speaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDir.create(tmp_path / "run")
    storage = LocalStorage(tmp_path / "ckpt")
    term = taken(storage)
    taken(storage, "elsewhere")
    shared = SharedSpec(run=str(run.path), checkpoints=storage.url, term=term.number, term_key=term.key)
    spec = RoleSpec(role="coordinator", name="coordinator", start=1, shared=shared)
    assert CoordinatorRole().run(spec) == EXIT_DEPOSED
    assert "this run is deposed" in "".join(capfd.readouterr())
    assert not run.log_file.exists()
    assert not run.coordinator_file.exists()


def test_folders_of_two_terms_never_meet() -> None:
    job = small(checkpoint_steps=1, term=3)
    ready(job, 0, compute(job, 0))
    (effect,) = job.say("server-0", Saved(0, epoch(job), 1, (), ((0, b"x"),)))
    assert isinstance(effect, Complete)
    assert effect.checkpoint.folder == folder_name(0, 1, 3) == "t0003-i0000-v0000000001"
    names = [folder_name(1, 9), folder_name(0, 5, 1), folder_name(1, 5, 1), folder_name(1, 6, 1), folder_name(0, 1, 2)]
    assert names == sorted(names), "a newer term comes after an older one, whatever it holds"


def test_a_checkpoint_has_the_plan_and_no_token(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    run = RunDir.create(tmp_path / "run")
    run.write_plan({"script": "train.py", "term": 1, "term_key": "secret"})
    term = taken(storage)
    saving = keeper(storage, log, term)
    saving.complete(complete(storage, 1, term=1))
    assert outcome(saving)[1] == ""
    manifest = read_manifest(storage, folder_name(0, 1, 1))
    assert manifest.plan == {"script": "train.py"}
    assert manifest.log is not None
    token = run.token_file.read_bytes()
    written = [path.read_bytes() for path in (tmp_path / "ckpt").rglob("*") if path.is_file()]
    assert written
    assert not [content for content in written if token in content or run.token() in content]
