"""A run that an earlier version wrote resumes with today's code and ends with the weights of that version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.kit.real_runs import PACELINE, ROOT, Trained, run, trained_in

from paceline.wire.token import new_token

FIXTURES = sorted(path.parent for path in (ROOT / "tests" / "fixtures").glob("*/expected.json"))


@pytest.fixture(scope="module", params=FIXTURES, ids=lambda path: str(path.name))
def fixture(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def expected(fixture: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((fixture / "expected.json").read_text())
    return content


def copy_of(fixture: Path, cwd: Path) -> None:
    """Copy the run to `cwd`, with the paths and the token that a fixture does not keep."""
    where = cwd / "run"
    shutil.copytree(fixture / "run", where)
    plan = json.loads((where / "run.json").read_text())
    plan.update(script=str(fixture / "train.py"), cwd=str(cwd))
    (where / "run.json").write_text(json.dumps(plan))
    (where / "token").write_text(new_token().hex())


@pytest.fixture(scope="module")
def resumed(fixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    cwd = tmp_path_factory.mktemp("resumed")
    copy_of(fixture, cwd)
    return trained_in(cwd, run([*PACELINE, "run", "--resume", "run", "-w", "1"], cwd))


def test_a_run_of_an_earlier_version_is_listed_and_its_audit_is_clean(
    fixture: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    copy_of(fixture, tmp_path)
    listed = run([*PACELINE, "checkpoints", "run"], tmp_path).check()
    assert all(name.rpartition("-")[2] in listed.out for name in expected["checkpoints"])
    run([*PACELINE, "audit", "run"], tmp_path).check()


def test_a_run_of_an_earlier_version_resumes_from_its_checkpoint(resumed: Trained, expected: dict[str, Any]) -> None:
    assert f"resuming from checkpoint {expected['checkpoints'][-1]}" in resumed.ended.out
    assert resumed.ended.out.count("warning") == 1
    assert "warning: run does not say with which code it began" in resumed.ended.out
    assert (resumed.summary["incarnation"], resumed.summary["rewinds"]) == (1, 0)


def test_the_resumed_run_ends_with_the_weights_of_the_earlier_version(
    resumed: Trained, expected: dict[str, Any]
) -> None:
    assert resumed.summary["steps"] == expected["steps"]
    assert resumed.summary["digest"] == expected["digest"]


def test_the_audit_of_the_resumed_run_is_clean(resumed: Trained) -> None:
    run([*PACELINE, "audit", "run"], resumed.dir.parent).check()
