"""A supervisor whose cluster ends the application: the run ends as lost, and says how to resume it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.contract.dummy_runner import DummyRunner

from paceline.engines import supervisor as supervisor_module
from paceline.engines.plan import RunPlan
from paceline.engines.role_runner import RunnerEvent
from paceline.engines.supervisor import Supervisor
from paceline.errors import ClusterLostError
from paceline.messages.status import RunSummary, Status
from paceline.runtime.exit_codes import EXIT_LOST


class Screen:
    """Keeps why the run failed."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    def line(self, name: str, text: str, *, error: bool) -> None: ...
    def status(self, status: Status) -> None: ...
    def note(self, text: str, *, warning: bool = False) -> None: ...
    def summary(self, summary: RunSummary) -> None: ...
    def failure(self, reason: str, trace: str, advice: str) -> None:
        self.failed.append((reason, advice))


class Lost(DummyRunner):
    """A runner of a cluster that has ended the application."""

    is_over = False

    def next_event(self, timeout_s: float) -> RunnerEvent | None:
        if self.is_over:
            return None
        self.is_over = True
        raise ClusterLostError("the Spark application has ended: it was stopped")


def test_a_run_whose_application_has_ended_is_lost_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "make_runner", lambda plan, run: Lost())
    (tmp_path / "train.py").touch()
    screen = Screen()
    plan = RunPlan(script=tmp_path / "train.py", run=tmp_path / "run", cwd=tmp_path)
    found = Supervisor(plan, screen)
    assert found.run().code == EXIT_LOST
    ((reason, advice),) = screen.failed
    assert reason == "the Spark application has ended: it was stopped"
    assert f"paceline run --resume {tmp_path / 'run'}" in advice
    assert any(reason in json.dumps(json.loads(file.read_text())) for file in (tmp_path / "run").glob("*.json"))
