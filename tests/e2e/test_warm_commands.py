"""A command that is forked from the warm process behaves like one that a user starts."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.real_runs import cold, environment, run
from tests.kit.warm import WarmServer

MODULE = [sys.executable, "-m", "paceline"]


def test_a_package_is_run_by_its_main_module(tmp_path: Path) -> None:
    forked = run([*MODULE, "--help"], tmp_path).check()
    with cold():
        started = run([*MODULE, "--help"], tmp_path).check()
    assert forked.lines[0].startswith("Usage: paceline ")
    assert forked.out == started.out


def test_only_scripts_and_modules_of_paceline_are_forked() -> None:
    env = environment()
    server = WarmServer(env)
    try:
        assert server.can_start([*MODULE, "--help"], env)
        assert server.can_start([sys.executable, "-m", "paceline.cli.main"], env)
        assert server.can_start([sys.executable, "train.py"], env)
        assert not server.can_start([sys.executable, "-m", "pip", "list"], env)
        assert not server.can_start([sys.executable, "-c", "pass"], env)
        assert not server.can_start(["/usr/bin/python3", "train.py"], env)
    finally:
        server.close()
