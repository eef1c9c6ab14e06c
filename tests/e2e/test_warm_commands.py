"""A command that is forked from the warm process behaves like one that a user starts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.kit.real_runs import cold, environment, run, warm_server
from tests.kit.warm import WarmServer
from tests.kit.warm_tools import WarmTools

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


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[WarmTools]:
    server = warm_server()
    assert server is not None
    tools = WarmTools(tmp_path, server, {"python": [sys.executable]})
    yield tools
    tools.close()


def test_a_tool_prints_and_ends_as_its_command(tools: WarmTools, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "print('torch' in sys.modules, os.environ['WORD'], os.getcwd(), sys.argv)\n"
        "sys.stderr.write('wrong')\n"
        "sum(range(3_000_000))\n"
        "sys.exit(7)\n"
    )
    words = [str(tmp_path / "python"), "script.py", "--option"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(WORD="said"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "wrong")
    assert done.stdout == f"True said {tmp_path} ['script.py', '--option']\n"
    assert tools.cpu_s > 0.005


@pytest.mark.usefixtures("tools")
def test_a_tool_starts_what_the_warm_process_cannot_fork(tmp_path: Path) -> None:
    words = [str(tmp_path / "python"), "-c", "import sys; print('torch' in sys.modules); sys.exit(5)"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (5, "False\n", "")


@pytest.mark.usefixtures("tools")
def test_a_tool_that_is_killed_takes_its_command_with_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    words = [str(tmp_path / "python"), "script.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        pid = int(tool.stdout.readline())
        assert pid != tool.pid
        tool.kill()
    deadline = time.monotonic() + 30.0
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
