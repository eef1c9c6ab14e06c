"""The summary as text."""

from __future__ import annotations

from paceline.coordinator.summary_text import summary_lines
from paceline.messages.status import RunSummary


def rows(summary: RunSummary) -> dict[str, str]:
    return dict(line.split(None, 1) for line in summary_lines(summary))


def test_a_line_has_the_name_and_the_value_of_a_field_in_one_column() -> None:
    lines = summary_lines(RunSummary(steps=3, digest="d" * 64, metrics={"a_long_name_of_a_metric": 0.5}))
    assert len({line.index(line.split(None, 1)[1], 2) for line in lines}) == 1
    assert "a_long_name_of_a_metric  0.5000" in lines


def test_a_field_without_a_value_has_no_line() -> None:
    embedded = rows(RunSummary(steps=3, workers=1, servers=1, mode="bsp", slots=1))
    assert not {"run", "digest", "checkpoint", "warning", "stopped", "replicas", "restarts", "rewinds"} & set(embedded)
    assert embedded["steps"] == "3"
    clustered = rows(RunSummary(mode="bsp", slots=1, run="runs/a-0001", digest="d" * 64, restarts={"worker": 1}))
    assert clustered["run"] == "runs/a-0001"
    assert clustered["restarts"] == "1 worker"
    assert rows(RunSummary(restarts={"worker": 3, "server": 1, "coordinator": 0}))["restarts"] == "3 workers, 1 server"
