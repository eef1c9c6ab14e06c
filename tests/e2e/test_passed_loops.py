"""A worker that starts again passes the loops that are done; what it measures there itself must not decide the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.real_runs import OWN_VALIDATION, PACELINE, Ended, python, run

pytestmark = pytest.mark.real_run


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    return python(OWN_VALIDATION, cwd=folder).check(), (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("leave", ["stop", "break"])
def test_patience_that_ends_in_passed_loops_neither_stops_the_job_nor_saves_its_model(
    leave: str, alone: tuple[Ended, bytes], tmp_path: Path
) -> None:
    command = [*PACELINE, "run", "-w", "2", "-s", "1", "--dir", "run", OWN_VALIDATION, "--dies", "4", "--leave", leave]
    ended = run(command, tmp_path).check()
    assert "worker-1 was killed by signal 9: restarted" in ended.out
    assert "worker-1 epoch 0 passed True" in ended.out
    assert "worker-0 epoch 5 passed False" in ended.out
    assert "warning: worker-1 called the model after its loop number 1" in ended.out
    assert ("job.stop('no better for 2 epochs') of worker-1 had no effect" in ended.out) == (leave == "stop")
    assert "the script of worker-1 ended after its loop number 3" in ended.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped"]) == (24, None)
    assert (tmp_path / "model.safetensors").read_bytes() == alone[1]
