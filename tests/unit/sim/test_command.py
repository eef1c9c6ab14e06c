"""`paceline dev sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.dev import command
from paceline.sim.run import Outcome
from paceline.sim.scenario import Scenario
from paceline.sim.world import Violation


def test_the_command_prints_its_figures_and_writes_them_as_json(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["sim", "--seeds", "4", "--start", "7", "--mode", "asp", "--workers", "3", "--servers", "2"]
    result = CliRunner().invoke(command, [*arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "no rule was broken" in result.stdout
    figures = json.loads(file.read_text())
    assert figures["seeds"] == 4
    assert figures["violations"] == {}
    assert figures["slots"] >= figures["commits"] > 0


def test_options_override_what_the_seed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Scenario] = []

    def note(scenario: Scenario) -> Outcome:
        played.append(scenario)
        return Outcome(scenario.seed, "", 1, 1.0, 1, 1, 0, 0)

    monkeypatch.setattr("paceline.sim.run.simulate", note)
    result = CliRunner().invoke(command, ["sim", "--seeds", "20", "--replicas", "2", "--mode", "asp", "--workers", "3"])
    assert result.exit_code == 0, result.output
    assert {(s.cluster.replicas, s.job.mode, s.cluster.workers) for s in played} == {(2, "asp", 3)}
    assert all(s.cluster.servers > 2 for s in played)


def test_more_replicas_than_the_servers_can_hold_are_refused() -> None:
    result = CliRunner().invoke(command, ["sim", "--seeds", "1", "--replicas", "2", "--servers", "2"])
    assert result.exit_code == 2
    assert "--replicas 2 needs at least 3 servers" in result.stderr


def test_a_violation_is_printed_with_its_seed_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario: Scenario) -> Outcome:
        raise Violation("two and two is five", seed=scenario.seed, event=3, lines=("the last event",))

    monkeypatch.setattr("paceline.sim.run.simulate", broken)
    result = CliRunner().invoke(command, ["sim", "--seeds", "2", "--start", "40"])
    assert result.exit_code == 1
    assert "VIOLATED by seeds [40, 41]" in result.stdout
    assert "seed 41, event 3: two and two is five" in result.stderr
