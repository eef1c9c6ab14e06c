"""Roles that are forked from a process that has loaded torch behave as roles that were started by a command."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit.real_runs import python
from tests.kit.roles import run_in, worker

from paceline.config.role_spec import RoleSpec, SharedSpec
from paceline.engines.processes import Children, Exit, Line

ABOUT = """
import json, os, sys
warm, trains = "torch" in sys.modules, "torch._dynamo" in sys.modules
import random, numpy, psutil
me = psutil.Process()
print(json.dumps({
    "warm": warm, "trains": trains, "pid": os.getpid(), "parent": os.getppid(),
    "session": os.getsid(0), "group": os.getpgid(0), "words": me.cmdline(), "cwd": os.getcwd(), "argv": sys.argv,
    "said": os.environ.get("SAID"), "env": len(os.environ),
    "draws": [random.random(), numpy.random.random()], "stdin": open("/proc/self/fd/0").read(),
    "files": len(os.listdir("/proc/self/fd")),
}))
"""


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(run_in(tmp_path))
    yield children
    children.end()


def started(children: Children, tmp_path: Path, **env: str) -> dict[str, Any]:
    """Start a worker, forked if possible, and return what it prints about itself."""
    script = tmp_path / "about.py"
    script.write_text(ABOUT)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in env.items():
            patch.setenv(key, value)
        child = children.start(worker(run_in(tmp_path), script, "--more", "arguments"), cwd=tmp_path)
    line = children.events.get(timeout=30.0)
    while not isinstance(children.events.get(timeout=30.0), Exit):
        pass
    assert isinstance(line, Line)
    said: dict[str, Any] = json.loads(line.text)
    assert said["pid"] == child.pid
    return said


def fork_server() -> psutil.Process:
    (found,) = (p for p in psutil.Process().children() if "paceline.runtime.fork_server" in p.cmdline())
    return found


def test_a_forked_role_has_the_arguments_and_environment_of_a_started_one(children: Children, tmp_path: Path) -> None:
    spawned = started(children, tmp_path, SAID="something")
    children.warm()
    forked = started(children, tmp_path, SAID="something")
    assert (spawned["warm"], forked["warm"]) == (False, True)
    for said in (spawned, forked):
        assert said["parent"] == os.getpid()
        assert said["session"] == said["group"] == said["pid"]
    for what in ("words", "cwd", "argv", "said", "env", "stdin"):
        assert forked[what] == spawned[what], what
    assert forked["files"] <= spawned["files"], "files of the fork server are inherited"


def test_a_forked_worker_need_not_load_what_an_optimizer_needs(children: Children, tmp_path: Path) -> None:
    children.warm()
    shared = SharedSpec(run=str(tmp_path / "nowhere"))
    children.start(RoleSpec(role="server", name="server-0", start=1, shared=shared))  # needs torch only
    while not isinstance(children.events.get(timeout=30.0), Exit):
        pass
    threads = fork_server().num_threads()
    assert started(children, tmp_path)["trains"]
    assert fork_server().num_threads() == threads, "a fork would not have its threads"


def test_forked_roles_do_not_draw_the_same_numbers(children: Children, tmp_path: Path) -> None:
    children.warm()
    one, other = (started(children, tmp_path)["draws"] for _ in range(2))
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_environment_variables_that_libraries_read_at_import_take_effect(children: Children, tmp_path: Path) -> None:
    children.warm()
    assert not started(children, tmp_path, OMP_NUM_THREADS="7")["warm"]
    assert started(children, tmp_path, PACELINE_SEED="1")["warm"]


def test_forking_can_be_forbidden(children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_FORK", "0")
    children.warm()
    assert not started(children, tmp_path)["warm"]


def test_a_role_is_started_by_a_command_if_the_fork_server_is_gone(children: Children, tmp_path: Path) -> None:
    children.warm()
    started(children, tmp_path)
    fork_server().kill()
    assert not started(children, tmp_path)["warm"]


def test_roles_outlive_the_fork_server(children: Children, tmp_path: Path) -> None:
    children.warm()
    script = tmp_path / "waits.py"
    script.write_text("print('up', flush=True)\nimport time\ntime.sleep(1000)\n")
    child = children.start(worker(run_in(tmp_path), script, name="worker-0"))
    assert children.events.get(timeout=30.0) == Line("worker-0", "up")
    fork_server().kill()
    time.sleep(0.2)
    assert child.alive
    child.signal(signal.SIGKILL)
    assert children.events.get(timeout=10.0) == Exit("worker-0", 1, -9)


def test_a_failed_fork_is_reported_as_a_failed_start(children: Children, tmp_path: Path) -> None:
    children.warm()
    started(children, tmp_path)
    began = time.monotonic()
    with pytest.raises(FileNotFoundError):
        children.start(worker(run_in(tmp_path), Path("x.py")), cwd=tmp_path / "nowhere")
    assert time.monotonic() - began < 10.0, "the engine does not wait"
    assert [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE] == []
    assert started(children, tmp_path)["warm"], "the fork server still works"


def test_a_role_that_is_killed_while_it_is_forked_is_not_waited_for(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.warm()
    started(children, tmp_path)
    parent = fork_server()
    parent.suspend()  # so that the test can kill the role before it answers
    before = {p.pid for p in psutil.Process().children()}

    def strike() -> None:
        parent.resume()
        while True:
            for process in psutil.Process().children():
                if process.pid not in before:
                    process.kill()
                    return

    killer = threading.Thread(target=strike)
    killer.start()
    script = tmp_path / "waits.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    began = time.monotonic()
    children.start(worker(run_in(tmp_path), script, name="worker-1"))
    killer.join()
    assert time.monotonic() - began < 20.0


KILLED = """
import os, signal
fork_server, parent, ask = os.getpid(), os.getppid(), os.getppid
def getppid():
    found = ask()
    if os.getpid() != fork_server and found == parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
os.getppid = getppid
"""
"""In a fork server: every forked role ends once the engine has inherited it."""

HALF = """
import os, time
fork_server, fork = os.getpid(), os.fork
def half():
    child = fork()
    if child != 0 and os.getpid() != fork_server:
        time.sleep(1000)
    return child
os.fork = half
"""
"""In a fork server: the process between server and role does not end."""


@pytest.mark.parametrize("fault", [KILLED, HALF], ids=["killed", "half"])
def test_a_role_that_ends_before_it_answers_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("paceline.engines.fork_client._PATIENCE_S", 5.0)  # enough to load torch
    children = Children(run_in(tmp_path))
    children.warm()
    try:
        assert not started(children, tmp_path)["warm"], "the role is started by a command instead"
        assert [p for p in psutil.Process().children() if "runtime.fork_server" not in " ".join(p.cmdline())] == []
    finally:
        children.end()


def test_a_role_that_is_being_forked_when_the_engine_is_interrupted_ends(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.warm()
    started(children, tmp_path)
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(1000)\n")

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        time.sleep(0.5)  # the role is forked in this time
        raise KeyboardInterrupt

    monkeypatch.setattr("select.select", interrupt)
    with pytest.raises(KeyboardInterrupt):
        children.start(worker(run_in(tmp_path), script, name="worker-1"))
    assert psutil.Process().children() == []


def test_a_role_is_forked_even_if_the_environment_is_not_utf_8(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"LATIN", b"caf\xe9")
    children.warm()
    assert started(children, tmp_path)["warm"]


def test_the_end_of_one_engine_leaves_the_fork_server_of_another(children: Children, tmp_path: Path) -> None:
    other = Children(run_in(tmp_path))
    children.warm()
    other.warm()
    other.end()
    assert started(children, tmp_path)["warm"]


def test_no_process_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import os, time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    engine = (
        "import os, pathlib, signal\n"
        "import psutil\n"
        "from tests.kit.roles import run_in, worker\n"
        "from paceline.engines.processes import Children\n"
        f"run = run_in(pathlib.Path({str(tmp_path)!r}))\n"
        "children = Children(run)\n"
        "children.warm()\n"
        f"children.start(worker(run, pathlib.Path({str(script)!r})))\n"
        "assert children.events.get(timeout=30).text == 'up'\n"
        "print(*(p.pid for p in psutil.Process().children()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = python("-c", engine, cwd=tmp_path, timeout_s=60)
    assert ended.code == -signal.SIGKILL
    pids = [int(word) for word in ended.out.split()]
    assert len(pids) == 2, "a fork server and a role"
    deadline = time.monotonic() + 5.0
    while (left := [p for p in pids if psutil.pid_exists(p)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
