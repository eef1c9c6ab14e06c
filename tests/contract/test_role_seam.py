"""The seam of roles: one new class and its registration make a role that the launcher's machinery starts and ends."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest
from tests.contract.dummy_role import GreeterRole
from tests.kit.roles import run_in

from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import RoleSpec, ServerSpec, SharedSpec, WorkerSpec
from paceline.engines.decisions import Decisions
from paceline.engines.hang_detection import HangDetection
from paceline.engines.output import Exit, Line
from paceline.engines.processes import Child, Children
from paceline.engines.restart_policy import Again, RestartPolicy, Stay
from paceline.engines.resume_hint import ResumeHint
from paceline.errors import UsageError
from paceline.messages.status import Status
from paceline.runtime import roles
from paceline.runtime.roles import Launch, Role, register, registered, role_named, role_of
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import next_start

REGISTERED = """
from tests.contract.dummy_role import GreeterRole
from paceline.runtime.roles import register
register(GreeterRole())
"""
"""In the role's process, which imports it at its start."""


@pytest.fixture
def greeter(monkeypatch: pytest.MonkeyPatch) -> Role:
    monkeypatch.setattr(roles, "_roles", dict(roles._roles))
    role = GreeterRole()
    register(role)
    return role


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    root = Path(__file__).parents[2]
    (tmp_path / "sitecustomize.py").write_text(REGISTERED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}:{root / 'src'}")
    return run_in(tmp_path / "run")


def start(children: Children, role: Role, run: RunDir) -> Child:
    launch = Launch(SharedSpec(run=str(run.path), label="a run"), ClusterSpec(), ServerSpec(), WorkerSpec())
    name = role.process_name(0)
    settings = msgspec.Raw(msgspec.json.encode(role.settings(launch)))
    number = next_start(run, name)
    return children.start(RoleSpec(role=role.name, name=name, start=number, shared=launch.shared, settings=settings))


def test_the_launcher_starts_and_ends_a_process_of_a_new_role(greeter: Role, run: RunDir) -> None:
    children = Children(run)
    try:
        for number in (1, 2):
            child = start(children, greeter, run)
            line = children.events.get(timeout=30.0)
            assert line == Line("greeter-0", f"hello from a run: greeter-0, start {number}")
            child.signal(signal.SIGTERM)
            assert children.events.get(timeout=30.0) == Exit("greeter-0", number, 7)
        start(children, greeter, run)
        assert isinstance(children.events.get(timeout=30.0), Line)
    finally:
        children.end(patience_s=5.0)
    assert children.alive() == []


def test_the_engine_restarts_a_new_role_as_its_class_says(greeter: Role) -> None:
    policy = RestartPolicy(5)
    for code, decision in ((7, Again), (-9, Again), (0, Stay)):
        policy.started("greeter-0", 1, 0.0)
        assert isinstance(policy.ended("greeter-0", code, 1.0), decision)
    assert policy.restarts == {"greeter": 2, "sampler": 0, "worker": 0, "server": 0, "coordinator": 0}
    decisions = Decisions(1, 1, 0, 5, ResumeHint(Path("run"), "30s"), resumed=False, grace_s=30.0)
    decisions.started("greeter-0", 1, 0.0)
    list(decisions.exited("greeter-0", 7, 1.0, Status()))
    assert decisions.due(1.0) == ["greeter-0"]


def test_the_engine_detects_a_new_role_that_hangs(greeter: Role) -> None:
    hangs = HangDetection(5.0)
    taking_part = {("greeter-0", 4), ("coordinator", 1)}
    alive = {"greeter-0": 4, "coordinator": 1}
    assert hangs.see(0.0, alive, taking_part) == {}
    found: dict[str, float] = {}
    for tick in range(1, 40):
        found |= hangs.see(tick * 0.25, alive, {("coordinator", 1)})
    assert list(found) == ["greeter-0"]


def test_a_role_is_found_by_its_name_and_by_the_name_of_its_process(greeter: Role) -> None:
    assert role_named("greeter") is greeter
    assert role_of("greeter-12") is greeter
    assert registered()[-1] is greeter
    assert [role.name for role in registered()[:3]] == ["coordinator", "server", "worker"]
    with pytest.raises(
        UsageError, match="role 'nobody' is not known; the roles are coordinator, server, worker, sampler, greeter"
    ):
        role_of("nobody-1")
    with pytest.raises(UsageError, match="cannot have the name 'greeter'"):
        register(GreeterRole())
