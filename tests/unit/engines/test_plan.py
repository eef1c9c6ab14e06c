"""The plan of a run, and its file in the run directory."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.live import parse_every
from paceline.engines.host_options import HostOptions
from paceline.engines.plan import RunPlan
from paceline.engines.resume import resumed
from paceline.engines.role_runner import Place
from paceline.errors import UsageError
from paceline.runtime.roles import WORKER
from paceline.runtime.rundir import RunDir


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("text", "steps", "seconds"), [("500", 500, 0.0), ("30s", 0, 30.0), ("0.5s", 0, 0.5), ("0", 0, 0.0), ("0s", 0, 0.0)]
)
def test_an_interval_of_checkpoints_is_in_steps_or_seconds(text: str, steps: int, seconds: float) -> None:
    assert parse_every(text) == (steps, seconds)


@pytest.mark.parametrize("text", ["", "often", "-5", "30 s m", "5m", "1.5", "s", "1e3"])
def test_a_wrong_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--checkpoint-every"):
        parse_every(text)


def test_the_options_of_a_run_become_settings_of_the_coordinator(script: Path, tmp_path: Path) -> None:
    plan = RunPlan(script=script, run=tmp_path, checkpoint_every="20", keep=2, max_steps=9, resume="i0-v1")
    cluster = plan.cluster
    assert (cluster.checkpoint_steps, cluster.checkpoint_s) == (20, 0.0)
    assert (cluster.keep_checkpoints, cluster.max_steps, cluster.resume) == (2, 9, "i0-v1")
    assert cluster.rewinds
    assert cluster.replicas == 0
    assert RunPlan(script=script, run=tmp_path, servers=3, replicas=2).cluster.replicas == 2
    assert RunPlan(script=script, run=tmp_path).cluster.checkpoint_s == 30.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"keep": 0}, "--keep must be at least 1, not 0"),
        ({"max_restarts": -1}, "--max-restarts must be 0 or more"),
        ({"max_steps": -1}, "--max-steps must be 0 or more"),
        ({"replicas": -1}, "--replicas must be 0 or more, not -1"),
        ({"replicas": 1}, "--replicas 1 needs 2 servers, one for each copy of a block: --servers is 1"),
        (
            {"checkpoint_every": "soon"},
            "--checkpoint-every must be a number of steps .* or 0 for never, not 'soon'",
        ),
        ({"workers": 0}, "--workers"),
    ],
)
def test_a_wrong_option_is_refused_by_name(change: dict[str, object], named: str, script: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named):
        RunPlan(script=script, run=tmp_path, **change)  # type: ignore[arg-type]


def test_a_plan_saved_in_the_run_directory_is_read_back(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.create(tmp_path / "run").path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_TIMEOUT_S", "17")
    plan = RunPlan(
        script=Path("train.py"), arguments=("--epochs", "3"), workers=3, servers=2, mode="ssp:2", slots=5, seed=11,
        threads=2, checkpoint_every="7", keep=4, checkpoints="kept", max_restarts=1, run=run, summary=Path("s.json"),
        fingerprint={"train.py": "00ff"},
    )  # fmt: skip
    plan.save()
    monkeypatch.undo()
    again = RunPlan.of(run)
    assert again == replace(
        plan, script=script, cwd=tmp_path, arguments=["--epochs", "3"], checkpoints=str(tmp_path / "kept"),
        summary=None, env={"PACELINE_TIMEOUT_S": "17"},
    )  # fmt: skip
    assert RunDir(run).checkpoints == str(tmp_path / "kept")
    assert RunPlan.of(run, workers=1, keep=9).workers == 1
    spec = again.role_spec("worker-j1", 3)
    assert (spec.role, spec.name, spec.start, spec.shared.checkpoints) == (
        "worker",
        "worker-j1",
        3,
        str(tmp_path / "kept"),
    )
    assert WORKER.environment(spec) == {
        "PACELINE_RUN": str(run), "PACELINE_NAME": "worker-j1", "PACELINE_THREADS": "2", "PACELINE_MODE": "ssp:2",
        "PACELINE_SLOTS": "5", "PACELINE_SEED": "11", "PACELINE_LOCAL_WORKERS": "3",
    }  # fmt: skip


def test_all_roles_and_joiners_are_traced_and_a_resumed_run_only_if_asked(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with --trace traces every role and every joiner; a resumed run needs the option again."""
    run = RunDir.create(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert RunPlan(script=script, run=run.path).role_spec("server-0", 1).shared.trace is None
    plan = RunPlan(script=script, run=Path("run"), trace=Path("new/t.json"))
    assert plan.role_spec("server-0", 1).shared.trace == str(run.trace)
    plan.save()
    assert RunPlan.of(run.path).trace == tmp_path / "new" / "t.json"
    assert WORKER.environment(RunPlan.of(run.path).role_spec("worker-j1", 1))["PACELINE_TRACE"] == str(run.trace)
    assert resumed(run.path, {}).trace is None
    assert resumed(run.path, {"trace": Path("t.json")}).trace == Path("t.json")


def test_checkpoints_are_in_the_run_directory_by_default(script: Path, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert run.checkpoints == str(run.path / "checkpoints")
    RunPlan(script=script, run=run.path).save()
    assert run.checkpoints == str(run.path / "checkpoints")
    RunPlan(script=script, run=run.path, checkpoints="memory://kept").save()
    assert run.checkpoints == "memory://kept"


def test_a_missing_or_damaged_plan_is_refused_by_name(script: Path, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no run\.json"):
        RunPlan.of(run.path)
    run.plan_file.write_text("{")
    with pytest.raises(UsageError, match=r"run\.json cannot be read"):
        RunPlan.of(run.path)
    run.plan_file.write_text("[]")
    with pytest.raises(UsageError, match="not a JSON object"):
        RunPlan.of(run.path)
    run.plan_file.write_text(json.dumps({"workers": 2}))
    with pytest.raises(UsageError, match=r"run\.json cannot be used"):
        RunPlan.of(run.path)
    run.plan_file.write_text(json.dumps({"script": str(script), "workers": "two"}))
    with pytest.raises(UsageError, match=r"run\.json cannot be used"):
        RunPlan.of(run.path)
    run.plan_file.write_text(json.dumps({"script": str(tmp_path / "gone.py")}))
    with pytest.raises(UsageError, match=r"gone\.py is not a file"):
        RunPlan.of(run.path)


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("203.0.113.7", "PACELINE_HOST=203.0.113.7: this host cannot listen there"),
        ("203.0.113.0/24", "PACELINE_HOST=203.0.113.0/24: this host has no address in that network"),
    ],
)
def test_an_address_of_another_host_is_refused_before_anything_starts(
    host: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    plan = RunPlan(script=script, run=tmp_path / "run")
    plan.check_environment()
    monkeypatch.setenv("PACELINE_HOST", host)
    with pytest.raises(UsageError, match=re.escape(named)):
        plan.check_environment()


# ---------------------------------------------------------------- hosts


def on_hosts(script: Path, **changes: Any) -> RunPlan:
    options = HostOptions(listen="10.0.0.1:7411", insecure_blocks=True)
    return RunPlan(script=script, run=script.parent / "runs" / "one", hosts=options, **changes)


def test_a_role_at_a_place_gets_the_directories_and_the_address_of_its_host(script: Path) -> None:
    plan = on_hosts(script, cwd=script.parent / "data", workers=8)
    place = Place(
        host_name="a", address="10.0.0.2", run="/cache/run", code_root="/cache/files", saves=True, cores=6, workers=3
    )
    spec = plan.role_spec("worker-0", 4, place=place)
    assert (spec.name, spec.start) == ("worker-0", 4)
    shared = spec.shared
    assert (shared.run, shared.host, shared.host_name) == ("/cache/run", "10.0.0.2", "a")
    assert shared.returns_files
    assert shared.insecure_blocks
    settings = json.loads(bytes(spec.settings))
    assert settings["script"] == "/cache/files/train.py"
    assert settings["local_workers"] == 3
    assert json.loads(bytes(plan.role_spec("server-0", 1, place=place).settings))["threads"] == 3


def test_a_role_at_a_place_records_its_trace_there(script: Path) -> None:
    plan = on_hosts(script, trace=script.parent / "t.json")
    place = Place(host_name="a", address="10.0.0.2", run="/cache/run")
    assert plan.role_spec("worker-0", 1, place=place).shared.trace == "/cache/run/trace"
    assert plan.role_spec("coordinator", 1).shared.trace == str(RunDir(plan.run).trace)


def test_the_coordinator_of_a_run_on_hosts_stays_on_this_machine(script: Path) -> None:
    shared = on_hosts(script).role_spec("coordinator", 1).shared
    assert (shared.host, shared.host_name) == ("10.0.0.1", "supervisor")
    assert shared.run == str(script.parent / "runs" / "one")
    assert not shared.returns_files


def test_paths_at_a_place_are_those_of_the_copy(script: Path) -> None:
    plan = on_hosts(script)
    place = Place(host_name="a", address="10.0.0.2", run="/cache/run", code_root="/cache/files")
    assert plan.path_at(place, script.parent / "data" / "x.csv") == "/cache/files/data/x.csv"
    assert plan.path_at(place, Path("/elsewhere/x.csv")) == "/cache/files"
    shared = Place(host_name="a", address="10.0.0.2", run="/cache/run")
    assert plan.path_at(shared, script) == str(script)
    assert plan.path_at(None, script) == str(script)


def test_the_options_for_hosts_survive_in_the_run_directory_but_the_token_file_does_not(script: Path) -> None:
    plan = on_hosts(script, token_file=script)
    plan.run.mkdir(parents=True)
    plan.save()
    kept = RunPlan.of(plan.run, adopt=True)
    assert kept.hosts == plan.hosts
    assert kept.token_file is None
    assert kept.adopt
