"""Rule 9, durability: the marker of a checkpoint is written only after the log up to its version is synced.

Each block keeps a hash chain of (version, step, fences) in its checkpoint, so that the audit compares what servers did
with what the coordinator recorded.

Upheld by:
- `coordinator.checkpoint_completion.CheckpointCompletion._complete`: sync, manifest, marker, in this order
- `core.hash_chain.extend` and `core.audit.checkpoints.check_chains`
- `core.coordinator.checkpoints`: only files and chains of the current placement complete a checkpoint
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from tests.kit.checkpoint_files import complete, outcome
from tests.kit.core import fence
from tests.kit.placed_job import compute, epoch, ready, small
from tests.kit.story import Story

from paceline.checkpoint.manifest import MARKER
from paceline.checkpoint.storage import LocalStorage
from paceline.coordinator import checkpoint_completion
from paceline.coordinator.checkpoint_completion import CheckpointCompletion
from paceline.coordinator.store import LogStore
from paceline.core.effects import Complete, Send
from paceline.core.hash_chain import START, extend
from paceline.messages import (
    Chained,
    Saved,
    SaveOver,
    Unreachable,
)


def test_files_and_chains_of_an_older_placement_do_not_complete_a_checkpoint() -> None:
    job = small(checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    old = epoch(job)
    for job.now in (0.0, 0.5):
        job.say("server-0", Unreachable("server-1", 3.0, old))
    assert (epoch(job), job.core.machines.checkpoints.saving) == (old + 1, None), "the unfinished checkpoint is void"
    job.wrote(job.core.finish(job.now))
    assert job.core.machines.checkpoints.saving == 1
    chains = ((0, b"right"),)
    assert job.say("server-1", Chained(0, old, 1, ((0, b"wrong"),))) == []
    effects = job.say("server-0", Saved(0, old, 1, (), chains))
    assert [type(e.message) for e in effects if isinstance(e, Send)] == [SaveOver]
    effects = job.say("server-0", Saved(0, epoch(job), 1, (), chains))
    assert [type(e) for e in effects] == [Complete]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "log.sqlite")
    yield made
    made.close()


def test_the_log_is_synced_before_the_marker_is_written(
    log: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Told(LocalStorage):
        @contextmanager
        def create(self, name: str) -> Iterator[IO[bytes]]:
            order.append(name.split("/")[1])
            with super().create(name) as file:
                yield file

    monkeypatch.setattr(checkpoint_completion, "sync_log", lambda path: order.append(f"sync {path.name}"))
    storage = Told(tmp_path / "ckpt")
    keeper = CheckpointCompletion(storage, log.path, log.generation)
    keeper.complete(complete(storage, 1))
    outcome(keeper)
    assert order == ["server-0.safetensors", "sync log.sqlite", "manifest.json", MARKER]


def test_a_log_that_cannot_be_synced_leaves_no_checkpoint(
    log: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint_completion, "sync_log", fail)
    storage = LocalStorage(tmp_path / "ckpt")
    keeper = CheckpointCompletion(storage, log.path, log.generation)
    keeper.complete(complete(storage, 1, "i0000-v0000000000"))
    folder, problem = outcome(keeper)
    assert f"cannot complete {folder}" in problem
    assert "Input/output error" in problem
    assert storage.folders() == []


def test_the_chain_of_a_block_depends_on_version_step_and_fences() -> None:
    links = [(1, 0, (fence(1),)), (2, 0, (fence(1),)), (1, 1, (fence(1),)), (1, 0, (fence(2),))]
    assert len({extend(START, *link) for link in links}) == len(links)
    assert extend(extend(START, *links[0]), *links[1]) != extend(extend(START, *links[1]), *links[0])


def test_the_audit_names_a_block_whose_chain_differs_from_the_log() -> None:
    story = Story()
    story.phase()
    story.go(3)
    claim = story.save()
    assert story.audit().ok
    story.checkpoints[-1] = replace(claim, chains=("00" * 16, *claim.chains[1:]))
    report = story.audit()
    assert not report.ok
    assert any("chain" in str(problem) for problem in report.problems)
