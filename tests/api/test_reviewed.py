"""Faults that a review found: each gave no message, or a traceback from inside Paceline."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from tests.kit.line import error, line, points
from tests.kit.statuses import status
from torch import nn
from torch.utils.data import DataLoader

import paceline
from paceline.coordinator.json_numbers import plain, shown
from paceline.coordinator.status import describe
from paceline.core.coordinator.tables.rounds import Rounds
from paceline.engines.supervisor import RunPlan
from paceline.errors import LoopError, UsageError
from paceline.messages import ValidatorSpec
from paceline.runtime.rundir import RunDir, next_run

STATUS = {
    "step": 3,
    "end_step": 9,
    "epoch": 0,
    "end_epoch": 1,
    "samples_per_s": 0.0,
    "logs": plain({"loss": float("nan"), "grad": float("inf")}),
    "metrics": {},
    "workers_alive": 2,
    "mode": "bsp",
    "max_staleness": 0,
}


def test_numbers_that_json_does_not_know_are_shown_as_text() -> None:
    assert "loss nan · grad inf" in describe(status(STATUS))
    assert shown(None) == "None"


def test_the_progress_line_names_the_worker_that_a_step_waits_for() -> None:
    slowest = {"step": 3, "slot": 1, "worker": "worker-1", "seconds": 22.4}
    assert "waits for slot 1 of step 3, 22 s at worker-1" in describe(status(STATUS, slowest=slowest))
    assert "waits for" not in describe(status(STATUS, slowest={**slowest, "seconds": 0.4}))


def test_metrics_of_one_name_do_not_hide_each_other() -> None:
    book = Rounds()
    book.validators = [ValidatorSpec(n, "accuracy", 1, 10, 10) for n in range(2)]
    book.latest = {0: (1, {"accuracy": 0.5}), 1: (1, {"accuracy": 0.9})}
    shown = {name: measured.value for name, measured in book.metrics().items()}
    assert shown == {"accuracy": 0.5, "accuracy-1.accuracy": 0.9}


@pytest.mark.parametrize("path", ["/proc/zz", __file__])
def test_a_directory_that_cannot_be_made_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match="--dir"):
        RunDir.create(Path(path))
    with pytest.raises(UsageError, match="--dir"):
        next_run(Path(path), "train")


def test_a_summary_that_cannot_be_written_is_refused_before_training() -> None:
    with pytest.raises(UsageError, match="--summary"):
        RunPlan(script=Path(__file__), run=Path("unused"), summary=Path("/proc/zz/s.json"))


def test_mistakes_in_a_loop_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="seed"):
        paceline.join(seed=2**70)
    with paceline.join() as job:
        model, optimizer = line()
        job.prepare(model, optimizer)
        with pytest.raises(UsageError, match="every"):
            job.validate(points(), every=2.5)  # type: ignore[arg-type]
        with pytest.raises(LoopError, match="outside of a turn"):
            job.log(loss=1.0)
        other = nn.Linear(2, 1)
        rival = torch.optim.Adam(other.parameters())
        rival.step()  # allowed outside of a turn
        job.batches(points(), 8)  # a loop that is never iterated is no phase
        for x, y in job.batches(points(), 8):
            error(model, x, y).backward()
            with pytest.raises(UsageError, match="one number"):
                job.log(name="abc")
            with pytest.raises(UsageError, match="one number"):
                job.log(vector=torch.zeros(3))
            with pytest.raises(LoopError, match="second optimizer"):
                rival.step()
            optimizer.step()
            with pytest.raises(LoopError, match="after optimizer"):
                job.log(loss=1.0)
        assert job.step > 0
    rival.step()


def test_an_evaluation_with_loader_processes_ends_them() -> None:
    with paceline.join() as job:
        model, optimizer = line()
        job.prepare(model, optimizer)
        for _ in range(2):
            loader = DataLoader(points(), batch_size=8, num_workers=1)
            job.evaluate(lambda model, x, y: {"error": error(model, x, y)}, loader)
            assert not psutil.Process().children()
