"""Options of `--mode allreduce` that do not fit are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.engines.run_request import request_run
from paceline.errors import UsageError

GOOD = {"mode": "allreduce", "insecure_collective": True}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def test_the_workers_hold_the_blocks(script: Path) -> None:
    plan = request_run(script, (), {**GOOD, "workers": 3, "ordered": True}).plan
    assert (plan.servers, plan.replicas, plan.cluster.collective, plan.cluster.servers) == (0, 0, True, 0)
    spec = plan.role_spec("worker-0", 1)
    assert b'"collective":true' in bytes(spec.settings)
    assert b'"ordered":true' in bytes(spec.settings)


def test_a_schedule_with_servers_in_it_has_servers_and_members(script: Path) -> None:
    options = {**GOOD, "mode": "bsp@500,allreduce", "servers": 3, "replicas": 1}
    plan = request_run(script, (), options).plan
    assert (plan.cluster.servers, plan.cluster.replicas, plan.cluster.collective) == (3, 1, True)
    plan = request_run(script, (), {"insecure_collective": True}).plan
    assert (plan.servers, plan.cluster.collective) == (1, True), "`paceline set mode=allreduce` is possible later"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "allreduce"}, "Add --insecure-collective"),
        ({"mode": "bsp@500,allreduce"}, "Add --insecure-collective"),
        ({**GOOD, "mode": "bsp@500,allreduce", "servers": 0}, "--servers must be at least 1"),
        ({**GOOD, "servers": 2}, "--servers does not fit --mode allreduce"),
        ({**GOOD, "replicas": 1}, "--replicas does not fit --mode allreduce"),
        ({"ordered": True}, "--ordered is for --mode allreduce"),
    ],
)
def test_what_does_not_fit_is_refused(script: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        request_run(script, (), options)
