"""Roles that are forked from a process which has loaded torch: they are as those that were started."""

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
    children = Children(tmp_path)
    yield children
    children.end()


def born(children: Children, tmp_path: Path, name: str = "worker-0", **env: str) -> dict[str, Any]:
    """Start a role, forked if that is how it comes, and return what it says of itself."""
    script = tmp_path / "about.py"
    script.write_text(ABOUT)
    child = children.start(name, ["worker", name, str(script), "--more", "arguments"], env, cwd=tmp_path)
    line = children.events.get(timeout=30.0)
    while not isinstance(children.events.get(timeout=30.0), Exit):
        pass
    assert isinstance(line, Line)
    said: dict[str, Any] = json.loads(line.text)
    assert said["pid"] == child.pid
    return said


def nursery() -> psutil.Process:
    (found,) = (p for p in psutil.Process().children() if "paceline.runtime.fork_server" in p.cmdline())
    return found


def test_a_forked_role_is_as_one_that_was_started(children: Children, tmp_path: Path) -> None:
    started = born(children, tmp_path, SAID="something")
    children.warm()
    forked = born(children, tmp_path, SAID="something")
    assert (started["warm"], forked["warm"]) == (False, True)
    for said in (started, forked):
        assert said["parent"] == os.getpid()
        assert said["session"] == said["group"] == said["pid"]
    for what in ("words", "cwd", "argv", "said", "env", "stdin"):
        assert forked[what] == started[what], what
    assert forked["files"] <= started["files"], "files of the nursery came along"


def test_a_forked_worker_need_not_load_what_an_optimizer_needs(children: Children, tmp_path: Path) -> None:
    children.warm()
    children.start("server-0", ["server", "server-0", str(tmp_path / "nowhere"), "1"], {})  # it only needs torch
    while not isinstance(children.events.get(timeout=30.0), Exit):
        pass
    threads = nursery().num_threads()
    assert born(children, tmp_path)["trains"]
    assert nursery().num_threads() == threads, "a thread would not come along"


def test_forked_roles_do_not_draw_the_same_numbers(children: Children, tmp_path: Path) -> None:
    children.warm()
    one, other = (born(children, tmp_path)["draws"] for _ in range(2))
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_variables_that_libraries_read_when_they_are_loaded_are_heeded(children: Children, tmp_path: Path) -> None:
    children.warm()
    assert not born(children, tmp_path, OMP_NUM_THREADS="7")["warm"]
    assert born(children, tmp_path, PACELINE_SEED="1")["warm"]


def test_forking_can_be_forbidden(children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_FORK", "0")
    children.warm()
    assert not born(children, tmp_path)["warm"]


def test_without_its_nursery_a_role_is_started(children: Children, tmp_path: Path) -> None:
    children.warm()
    born(children, tmp_path)
    nursery().kill()
    assert not born(children, tmp_path)["warm"]


def test_roles_outlive_the_nursery(children: Children, tmp_path: Path) -> None:
    children.warm()
    script = tmp_path / "waits.py"
    script.write_text("print('up', flush=True)\nimport time\ntime.sleep(1000)\n")
    child = children.start("worker-0", ["worker", "worker-0", str(script)], {})
    assert children.events.get(timeout=30.0) == Line("worker-0", "up")
    nursery().kill()
    time.sleep(0.2)
    assert child.alive
    child.signal(signal.SIGKILL)
    assert children.events.get(timeout=10.0) == Exit("worker-0", child.pid, -9)


def test_a_birth_that_fails_is_an_ordinary_start_that_fails(children: Children, tmp_path: Path) -> None:
    children.warm()
    born(children, tmp_path)
    began = time.monotonic()
    with pytest.raises(FileNotFoundError):
        children.start("worker-0", ["worker", "worker-0", "x.py"], {}, cwd=tmp_path / "nowhere")
    assert time.monotonic() - began < 10.0, "it is not waited for"
    assert [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE] == []
    assert born(children, tmp_path)["warm"], "the nursery is well"


def test_a_role_that_is_killed_while_it_is_born_is_not_waited_for(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.warm()
    born(children, tmp_path)
    parent = nursery()
    parent.suspend()  # so that there is time
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
    children.start("worker-1", ["worker", "worker-1", str(script)], {})
    killer.join()
    assert time.monotonic() - began < 20.0


KILLED = """
import os, signal
nursery, parent, ask = os.getpid(), os.getppid(), os.getppid
def getppid():
    found = ask()
    if os.getpid() != nursery and found == parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
os.getppid = getppid
"""
"""In a nursery: whoever is forked ends once it is adopted."""

HALF = """
import os, time
nursery, fork = os.getpid(), os.fork
def half():
    child = fork()
    if child != 0 and os.getpid() != nursery:
        time.sleep(1000)
    return child
os.fork = half
"""
"""In a nursery: who is to leave its child behind does not."""


@pytest.mark.parametrize("fault", [KILLED, HALF], ids=["killed", "half"])
def test_a_role_that_ends_before_it_has_said_a_word_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("paceline.engines.fork_client._PATIENCE_S", 5.0)  # so long until it has loaded torch
    children = Children(tmp_path)
    children.warm()
    try:
        assert not born(children, tmp_path)["warm"], "it is started instead"
        assert [p for p in psutil.Process().children() if "runtime.fork_server" not in " ".join(p.cmdline())] == []
    finally:
        children.end()


def test_a_role_that_is_being_born_when_the_engine_is_interrupted_ends(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children.warm()
    born(children, tmp_path)
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(1000)\n")

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        time.sleep(0.5)  # it is born meanwhile
        raise KeyboardInterrupt

    monkeypatch.setattr("select.select", interrupt)
    with pytest.raises(KeyboardInterrupt):
        children.start("worker-1", ["worker", "worker-1", str(script)], {})
    assert psutil.Process().children() == []


def test_an_environment_need_not_be_text(children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"LATIN", b"caf\xe9")
    children.warm()
    assert born(children, tmp_path)["warm"]


def test_two_engines_in_one_process(children: Children, tmp_path: Path) -> None:
    other = Children(tmp_path)
    children.warm()
    other.warm()
    other.end()
    assert born(children, tmp_path)["warm"]


def test_nobody_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import os, time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    engine = (
        "import os, pathlib, signal\n"
        "import psutil\n"
        "from paceline.engines.processes import Children\n"
        f"children = Children(pathlib.Path({str(tmp_path)!r}))\n"
        "children.warm()\n"
        f"children.start('worker-0', ['worker', 'worker-0', {str(script)!r}], {{}})\n"
        "assert children.events.get(timeout=30).text == 'up'\n"
        "print(*(p.pid for p in psutil.Process().children()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = python("-c", engine, cwd=tmp_path, timeout_s=60)
    assert ended.code == -signal.SIGKILL
    pids = [int(word) for word in ended.out.split()]
    assert len(pids) == 2, "a nursery and a role"
    deadline = time.monotonic() + 5.0
    while (left := [p for p in pids if psutil.pid_exists(p)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
