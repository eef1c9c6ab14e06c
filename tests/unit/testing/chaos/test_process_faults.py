"""A kill while a checkpoint is written: the thread that writes it needs real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.kit.chaos_run import Script, dead, planned, sleeper, stage

from paceline.checkpoint.manifest import MARKER
from paceline.testing.chaos.plan import Kind


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    with sleeper() as process:
        yield process


@pytest.mark.parametrize("late", [False, True])
def test_a_kill_while_a_checkpoint_is_written_hits_or_is_counted_as_missed(
    late: bool, tmp_path: Path, victim: psutil.Process
) -> None:
    run, injector = stage(tmp_path, "coordinator", victim)
    folder = tmp_path / "run" / "checkpoints" / "i0000-v0000000002"
    (folder.parent / "i0000-v0000000001").mkdir(parents=True)
    run.dir.logs.mkdir()

    def write() -> None:
        time.sleep(0.1)
        folder.mkdir()
        (folder / "part").touch()
        while late and not dead(victim):
            pass
        if late:
            (folder / MARKER).touch()

    def change(script: Script) -> None:
        if dead(victim):
            script.seen = replace(script.seen, generation=2)
            script.respawn("coordinator", 99)

    run.script.change = change
    writer = threading.Thread(target=write)
    writer.start()
    try:
        hit = injector.do(planned(Kind.SAVING, "coordinator"))
    finally:
        writer.join()
    assert injector.figures.checkpoints_checked == 1
    assert injector.figures.checkpoints_unloadable == 1, "the scripted checkpoints are empty folders"
    if hit:
        assert injector.figures.fired == {"kill-saving coordinator": 1}
    else:
        assert late
        assert injector.figures.fired == {"kill coordinator": 1}
        assert injector.figures.missed_saves == 1
