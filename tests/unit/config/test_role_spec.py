"""The configuration of a role: one document, made from the plan and the environment by the launcher."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import (
    LogSpec,
    RoleSpec,
    ServerSpec,
    SharedSpec,
    WorkerSpec,
    decode_role_spec,
    encode_role_spec,
)
from paceline.engines.plan import RunPlan
from paceline.errors import UsageError
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import hand_over


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "train.py").touch()
    return RunDir.create(tmp_path / "run")


def plan(run: RunDir, **values: object) -> RunPlan:
    return RunPlan(script=run.path.parent / "train.py", run=run.path, **values)  # type: ignore[arg-type]


def test_each_role_reads_its_own_settings(run: RunDir) -> None:
    made = plan(run, arguments=("--epochs", "3"), servers=2, replicas=1, log_level="info", log_format="json")
    for name, kind in (("coordinator", ClusterSpec), ("server-1", ServerSpec), ("worker-0", WorkerSpec)):
        spec = decode_role_spec(encode_role_spec(made.role_spec(name, 4)))
        assert (spec.name, spec.start, spec.shared.run) == (name, 4, str(run.path))
        assert spec.shared.log == LogSpec("info", "json")
        assert isinstance(spec.read(kind), kind)
    assert made.role_spec("coordinator", 1).read(ClusterSpec).replicas == 1
    assert made.role_spec("coordinator", 1, resume="i0-v3").read(ClusterSpec).resume == "i0-v3"
    worker = made.role_spec("worker-0", 1).read(WorkerSpec)
    assert (worker.script, worker.arguments) == (str(run.path.parent / "train.py"), ("--epochs", "3"))


def test_options_override_the_environment_and_the_environment_overrides_the_kept_values(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_SEED", "5")
    monkeypatch.setenv("PACELINE_MODE", "asp")
    kept = {"PACELINE_TIMEOUT_S": "17"}
    worker = plan(run, seed=9, env=kept).role_spec("worker-0", 1).read(WorkerSpec)
    assert (worker.seed, worker.mode, worker.slots, worker.timeout_s) == (9, "asp", None, 17.0)
    monkeypatch.setenv("PACELINE_TIMEOUT_S", "3")
    assert plan(run, env=kept).role_spec("worker-0", 1).read(WorkerSpec).timeout_s == 3.0


def test_the_configuration_of_a_role_has_the_settings_of_the_environment(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HOST", "10.1.0.0/16"), ("LANE", "tcp"), ("OVERLAP", "0"), ("FAULTS", "{}")):
        monkeypatch.setenv(f"PACELINE_{name}", value)
    spec = plan(run).role_spec("worker-0", 1)
    assert (spec.shared.host, spec.shared.local) == ("10.1.0.0/16", False)
    worker = spec.read(WorkerSpec)
    assert (worker.overlap, worker.faults) == (False, "{}")


def test_the_configuration_of_a_role_does_not_contain_the_token(run: RunDir) -> None:
    for name in ("coordinator", "server-0", "worker-0"):
        assert run.token().hex() not in hand_over(run, plan(run).role_spec(name, 1)).read_text()


def test_only_the_newest_configuration_of_a_name_is_kept(run: RunDir) -> None:
    for start in (1, 2):
        hand_over(run, plan(run).role_spec("worker-1", start))
    file = hand_over(run, plan(run).role_spec("worker-10", 1))
    assert decode_role_spec(file.read_bytes()).name == "worker-10"
    assert sorted(path.name for path in run.roles.iterdir()) == ["worker-1.2.json", "worker-10.1.json"]


def test_wrong_values_are_refused() -> None:
    with pytest.raises(UsageError, match="--log-level must be one of debug, info, warning, error, not 'loud'"):
        LogSpec("loud")
    with pytest.raises(UsageError, match="--log-format must be one of text, json, not 'xml'"):
        LogSpec("info", "xml")
    with pytest.raises(msgspec.ValidationError):
        decode_role_spec(b'{"role": "worker"}')
    wrong = RoleSpec(
        role="server",
        name="server-0",
        start=1,
        shared=SharedSpec(run="run"),
        settings=msgspec.Raw(b'{"threads": "two"}'),
    )
    with pytest.raises(msgspec.ValidationError):
        wrong.read(ServerSpec)
