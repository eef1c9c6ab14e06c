"""How a worker's process ends, as its engine sees it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.kit.roles import command, run_in, worker

from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_LEFT, EXIT_LOST, EXIT_SCRIPT
from paceline.runtime.rundir import RunDir

LOOP = """
import time
try:
    print("up", flush=True)
    while True:
        time.sleep(0.01)
finally:
    print("finally", flush=True)
"""


def start(tmp_path: Path, source: str, timeout_s: float = 30.0) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(source)
    run = run_in(tmp_path / "run")
    return subprocess.Popen(
        command(run, worker(run, script, timeout_s=timeout_s)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


def test_sigterm_runs_the_finally_blocks(tmp_path: Path) -> None:
    process = start(tmp_path, LOOP)
    up(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == EXIT_LEFT
    assert out == "finally\n"


def test_a_second_sigterm_ends_the_worker_at_once(tmp_path: Path) -> None:
    source = LOOP + "    time.sleep(1000)\n"
    process = start(tmp_path, source)
    up(process)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "finally\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == EXIT_LEFT


def test_an_error_while_leaving_is_printed_and_does_not_fail_the_worker(tmp_path: Path) -> None:
    process = start(tmp_path, LOOP + "    raise ValueError('late')\n")
    up(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == EXIT_LEFT
    assert "ValueError: late" in out


def test_sigterm_ends_a_forked_child_of_the_script(tmp_path: Path) -> None:
    source = """
import os, signal, time
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.write(tell, b"!")
    time.sleep(1000)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
print("died of", os.WTERMSIG(status), flush=True)
raise RuntimeError("the parent was not told")
"""
    process = start(tmp_path, source)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == EXIT_SCRIPT
    assert "died of 15" in out
    assert "the parent was not told" in out


@pytest.mark.parametrize("announced", [False, True])
def test_a_worker_without_a_coordinator_is_lost_by_name(announced: bool, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    if announced:
        run.announce("tcp://127.0.0.1:9", 1)
    began = time.monotonic()
    process = start(tmp_path, "import paceline; paceline.join()", timeout_s=0.5)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == EXIT_LOST, out
    assert (
        "did not accept a session at tcp://127.0.0.1:9" if announced else "no coordinator has announced itself"
    ) in out
    assert time.monotonic() - began < 25.0


def test_a_rewind_that_the_script_wrapped_in_its_own_exception_is_recognised(tmp_path: Path) -> None:
    source = """
from paceline.errors import JobRewoundError
try:
    raise JobRewoundError("back to version 3")
except JobRewoundError:
    raise RuntimeError("training failed")
"""
    process = start(tmp_path, source)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == EXIT_AGAIN, out
    assert out == "JobRewoundError: back to version 3\n"


def test_a_script_that_ends_after_it_caught_sigterm_counts_as_left(tmp_path: Path) -> None:
    """The script catches the request to leave and ends."""
    source = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException as error:
    print(type(error).__name__, flush=True)
"""
    process = start(tmp_path, source)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == EXIT_LEFT
    assert out == "Preempted\n"


def test_a_module_runs_as_python_m_runs_it(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (tmp_path / "beside.py").write_text("value = 2\n")
    (package / "inner.py").write_text("value = 1\n")
    source = (
        "import sys, beside\nfrom . import inner\nprint(__name__, __package__, inner.value, beside.value, sys.argv)\n"
    )
    (package / "train.py").write_text(source)
    run = run_in(tmp_path / "run")
    words = command(run, worker(run, package / "train.py", "--epochs", "3", module="pkg.train"))
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == f"__main__ pkg 1 2 ['{package / 'train.py'}', '--epochs', '3']\n"
    assert ended.returncode == EXIT_SCRIPT  # since it never joins
    assert "ended without calling paceline.join()" in ended.stderr
