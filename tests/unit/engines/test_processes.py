"""Child processes: what they print, how they end, and that nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.kit.kept_fork_server import KeptForkServer
from tests.kit.roles import run_in, worker

from paceline.engines.output import Exit, Line, Stream
from paceline.engines.processes import Child, Children
from paceline.runtime.roles import WORKER


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptForkServer]:
    server = KeptForkServer()
    yield server
    server.end()


@pytest.fixture(params=["started", "forked"])
def children(request: pytest.FixtureRequest, kept: KeptForkServer, tmp_path: Path) -> Children:
    found = Children(run_in(tmp_path))
    if request.param == "forked":
        found._fork_client = kept.lend()
    return found


def start(children: Children, tmp_path: Path, source: str, name: str = "worker-0") -> Child:
    script = tmp_path / f"{name}.py"
    script.write_text(source)
    start = 1 + (children.children[name].start if name in children.children else 0)
    return children.start(worker(run_in(tmp_path), script, name=name, start=start), cwd=tmp_path)


def events(children: Children, until: type[Line | Exit] = Exit) -> list[Line | Exit]:
    found: list[Line | Exit] = []
    while not found or not isinstance(found[-1], until):
        found.append(children.events.get(timeout=20.0))
    return found


def test_the_lines_of_a_child_come_before_its_exit(children: Children, tmp_path: Path) -> None:
    source = "import os, sys; print('one\\ntwo'); print(os.getcwd(), 'torch' in sys.modules); raise SystemExit(3)"
    child = start(children, tmp_path, source)
    *lines, end = events(children)
    forked = children.fork_server_ready
    assert lines[:3] == [Line("worker-0", text) for text in ("one", "two", f"{tmp_path} {forked}")]
    assert end == Exit("worker-0", 1, 1), "an exit code of the script is a failure of the worker"
    assert (tmp_path / "logs" / "worker-0.log").read_text().startswith("one\ntwo\n")
    assert not child.alive
    children.end()


def test_the_threads_and_exit_functions_of_a_script_come_before_its_exit(children: Children, tmp_path: Path) -> None:
    source = (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'exit function')\n"
        "atexit.register(sys.stdout.write, 'without a newline')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n"
        "raise SystemExit(3)\n"
    )
    start(children, tmp_path, source)
    *_, end = events(children)
    assert end == Exit("worker-0", 1, 1)
    said = (tmp_path / "logs" / "worker-0.log").read_text()
    assert said.index("thread\n") < said.index("without a newline") < said.index("exit function\n")
    children.end()


def test_standard_output_standard_error_and_last_words_are_told_apart(children: Children, tmp_path: Path) -> None:
    code = "import sys; print('result'); print('warning', file=sys.stderr); sys.stderr.write('no end'); 1 / 0"
    start(children, tmp_path, code)
    *lines, _ = events(children)
    found = {
        stream: [line.text for line in lines if isinstance(line, Line) and line.stream is stream] for stream in Stream
    }
    assert found[Stream.OUT] == ["result"]
    assert found[Stream.ERR] == ["warning", "no end"]
    assert found[Stream.LAST][0] == "Traceback (most recent call last):"
    assert found[Stream.LAST][-1] == "ZeroDivisionError: division by zero"
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "result\n" in log
    assert "\nZeroDivisionError: division by zero\n" in log
    children.end()


def test_a_restarted_child_appends_to_the_log_of_its_name(children: Children, tmp_path: Path) -> None:
    first = start(children, tmp_path, "import os, signal; print('first'); os.kill(os.getpid(), signal.SIGKILL)")
    assert events(children)[-1] == Exit("worker-0", 1, -9)
    second = start(children, tmp_path, "print('second')")
    assert second.pid != first.pid
    assert events(children)[-1] == Exit("worker-0", 2, 1), "a worker that never joins has failed"
    assert [c.name for c in children.children.values()] == ["worker-0"]
    text = (tmp_path / "logs" / "worker-0.log").read_text()
    assert text.index("first") < text.index("second")
    children.end()


def test_processes_that_a_child_started_end_with_it(children: Children, tmp_path: Path) -> None:
    source = (
        "import os, signal, subprocess\n"
        "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    start(children, tmp_path, source)
    line, *_, end = events(children)
    assert isinstance(line, Line)
    assert isinstance(end, Exit)
    deadline = time.monotonic() + 5.0
    while psutil.pid_exists(int(line.text)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not psutil.pid_exists(int(line.text))
    children.end()


def test_end_sends_sigterm_and_then_sigkill(children: Children, tmp_path: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(1000)\n"
    child = start(children, tmp_path, stubborn)
    assert events(children, Line) == [Line("worker-0", "up")]
    began = time.monotonic()
    children.end(patience_s=0.3)
    assert 0.3 <= time.monotonic() - began < 2.0
    assert not child.alive


def test_end_kills_at_once_the_children_that_need_no_patience(children: Children, tmp_path: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(1000)\n"
    child = start(children, tmp_path, stubborn)
    events(children, Line)
    began = time.monotonic()
    children.end(patience_s=60.0, at_once=lambda role: role is WORKER)
    assert time.monotonic() - began < 20.0, "it waits for nobody"
    assert not child.alive


def test_the_environment_overrides_the_defaults_of_a_child(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TIMEOUT_S", "5")
    script = tmp_path / "show.py"
    script.write_text(
        "import os; print(os.environ['PACELINE_TIMEOUT_S'], os.environ['PACELINE_CACHE'], os.environ['PACELINE_NAME'])"
    )
    defaults = {"PACELINE_TIMEOUT_S": "7", "PACELINE_CACHE": "/c"}
    children.start(worker(run_in(tmp_path), script), defaults=defaults)
    assert events(children, Line) == [Line("worker-0", "5 /c worker-0")]
    events(children)
    children.end()


def test_signals_to_an_ended_child_have_no_effect(children: Children, tmp_path: Path) -> None:
    child = start(children, tmp_path, "pass")
    events(children)
    assert child.pid != os.getpid()
    child.signal(signal.SIGKILL)
    child.signal(signal.SIGKILL, group=True)
    children.end()
