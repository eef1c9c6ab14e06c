"""Roles that are forked from a process that has loaded torch behave as roles that were started by a command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from tests.kit.kept_fork_server import KeptForkServer
from tests.kit.real_runs import python
from tests.kit.roles import run_in, worker

from paceline.config.role_spec import RoleSpec, SharedSpec
from paceline.engines.fork_client import ServerEnd
from paceline.engines.output import Exit, Line
from paceline.engines.processes import Children

T = TypeVar("T")

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


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptForkServer]:
    server = KeptForkServer()
    yield server
    server.end()


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Children]:
    """An engine without a fork server."""
    children = Children(run_in(tmp_path))
    yield children
    children.end()


@pytest.fixture
def children(kept: KeptForkServer, cold: Children) -> Children:
    """An engine whose fork server is ready and has loaded what training needs."""
    cold._fork_client = kept.lend()
    return cold


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


def until(look: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """Wait until `look` returns something."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("it never happened")


def fork_servers(kept: KeptForkServer) -> list[psutil.Process]:
    """The fork servers of the engine."""
    return [p for p in kept.others() if "paceline.runtime.fork_server" in p.cmdline()]


def fork_server(kept: KeptForkServer) -> psutil.Process:
    (found,) = fork_servers(kept)
    return found


def test_a_forked_role_has_the_arguments_and_environment_of_a_started_one(children: Children, tmp_path: Path) -> None:
    spawned = started(Children(run_in(tmp_path)), tmp_path, SAID="something")
    forked = started(children, tmp_path, SAID="something")
    assert (spawned["warm"], forked["warm"]) == (False, True)
    for said in (spawned, forked):
        assert said["parent"] == os.getpid()
        assert said["session"] == said["group"] == said["pid"]
    for what in ("words", "cwd", "argv", "said", "env", "stdin"):
        assert forked[what] == spawned[what], what
    assert forked["files"] <= spawned["files"], "files of the fork server are inherited"


def test_a_forked_worker_need_not_load_what_an_optimizer_needs(
    cold: Children, kept: KeptForkServer, tmp_path: Path
) -> None:
    cold.warm()
    shared = SharedSpec(run=str(tmp_path / "nowhere"))
    cold.start(RoleSpec(role="server", name="server-0", start=1, shared=shared))  # needs torch only
    while not isinstance(cold.events.get(timeout=30.0), Exit):
        pass
    threads = fork_server(kept).num_threads()
    assert started(cold, tmp_path)["trains"]
    assert fork_server(kept).num_threads() == threads, "a fork would not have its threads"


def test_forked_roles_do_not_draw_the_same_numbers(children: Children, tmp_path: Path) -> None:
    one, other = (started(children, tmp_path)["draws"] for _ in range(2))
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_environment_variables_that_libraries_read_at_import_take_effect(children: Children, tmp_path: Path) -> None:
    assert not started(children, tmp_path, OMP_NUM_THREADS="7")["warm"]
    assert started(children, tmp_path, PACELINE_SEED="1")["warm"]


def test_forking_can_be_forbidden(cold: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_FORK", "0")
    cold.warm()
    assert not started(cold, tmp_path)["warm"]


def test_a_role_is_started_by_a_command_if_the_fork_server_is_gone(
    children: Children, kept: KeptForkServer, tmp_path: Path
) -> None:
    started(children, tmp_path)
    fork_server(kept).kill()
    assert not started(children, tmp_path)["warm"]


def test_a_fork_server_that_was_killed_is_replaced_while_roles_start_by_commands(
    children: Children, kept: KeptForkServer, tmp_path: Path
) -> None:
    started(children, tmp_path)
    fork_server(kept).kill()
    assert until(children.fork_server_ended) == ServerEnd(-9, was_ready=True, replaced=False)
    assert children.fork_server_ended() is None, "each end is told once"
    began = time.monotonic()
    children.warm()
    warmed_s = time.monotonic() - began
    loading = fork_server(kept)
    assert not started(children, tmp_path)["warm"], "the server has not loaded torch yet"
    until(lambda: children.fork_server_ready or None)
    assert warmed_s < max(0.5, (time.monotonic() - began) / 4), "it does not wait until the server has loaded torch"
    about = started(children, tmp_path)
    assert about["warm"]
    assert about["trains"]
    assert fork_server(kept) == loading


def test_a_fork_server_has_a_spare_that_takes_over_at_once(
    children: Children, kept: KeptForkServer, tmp_path: Path
) -> None:
    def one_more(*known: psutil.Process) -> psutil.Process | None:
        assert children.fork_server_ended() is None, "the end of a spare needs no word"
        return next((p for p in fork_servers(kept) if p not in known), None)

    first = fork_server(kept)
    assert children.fork_server_ended() is None  # makes the spare
    (spare,) = (p for p in fork_servers(kept) if p != first)
    assert os.getpgid(spare.pid) == spare.pid
    first.kill()
    about = started(children, tmp_path)
    assert about["warm"]
    assert about["trains"]
    assert until(children.fork_server_ended) == ServerEnd(-9, was_ready=True, replaced=True)
    other = until(lambda: one_more(spare))
    other.kill()  # the next spare, which is replaced too
    until(lambda: one_more(spare, other))
    assert started(children, tmp_path)["warm"]


def test_a_fork_server_that_does_not_answer_is_ended(
    children: Children, kept: KeptForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.engines.fork_client._FORK_S", 0.3)
    hanging = fork_server(kept)
    hanging.suspend()
    assert not started(children, tmp_path)["warm"]
    assert not hanging.is_running()
    assert children.fork_server_ended() == ServerEnd(None, was_ready=True, replaced=False)


def test_roles_outlive_the_fork_server(children: Children, kept: KeptForkServer, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("print('up', flush=True)\nimport time\ntime.sleep(1000)\n")
    child = children.start(worker(run_in(tmp_path), script, name="worker-0"))
    assert children.events.get(timeout=30.0) == Line("worker-0", "up")
    fork_server(kept).kill()
    time.sleep(0.2)
    assert child.alive
    child.signal(signal.SIGKILL)
    assert children.events.get(timeout=10.0) == Exit("worker-0", 1, -9)


def test_a_failed_fork_is_reported_as_a_failed_start(children: Children, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(FileNotFoundError):
        children.start(worker(run_in(tmp_path), Path("x.py")), cwd=tmp_path / "nowhere")
    assert time.monotonic() - began < 10.0, "the engine does not wait"
    assert [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE] == []
    assert started(children, tmp_path)["warm"], "the fork server still works"


def test_a_role_that_is_killed_while_it_is_forked_is_not_waited_for(
    children: Children, kept: KeptForkServer, tmp_path: Path
) -> None:
    parent = fork_server(kept)
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
    cold: Children, kept: KeptForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("paceline.engines.fork_client._PATIENCE_S", 5.0)  # enough to load torch
    cold.warm()
    assert not started(cold, tmp_path)["warm"], "the role is started by a command instead"
    assert [p for p in kept.all_others() if "runtime.fork_server" not in " ".join(p.cmdline())] == []


def test_a_role_that_is_being_forked_when_the_engine_is_interrupted_ends(
    children: Children, kept: KeptForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(1000)\n")

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        time.sleep(0.5)  # the role is forked in this time
        raise KeyboardInterrupt

    monkeypatch.setattr("select.select", interrupt)
    with pytest.raises(KeyboardInterrupt):
        children.start(worker(run_in(tmp_path), script, name="worker-1"))
    assert kept.all_others() == []


def test_a_role_is_forked_even_if_the_environment_is_not_utf_8(
    cold: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"LATIN", b"caf\xe9")
    cold.warm()
    assert started(cold, tmp_path)["warm"]


def test_the_end_of_one_engine_leaves_the_fork_server_of_another(children: Children, tmp_path: Path) -> None:
    other = Children(run_in(tmp_path))
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
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(timeout=5.0)  # this process may have inherited it
