"""The agent below a process of an engine: whatever ends that process ends the agent, which leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.kit.real_runs import environment
from tests.kit.signals import until_it_handles

from paceline.engines.carriers.base import agent_words
from paceline.engines.carriers.carried_agent import CarriedAgent
from paceline.wire.token import new_token

CARRY = """
import os, sys
from paceline.engines.carriers.carried_agent import CarriedAgent
carried = CarriedAgent(sys.argv[2:], sys.argv[1], os.environ)
print(carried.wait())
"""
TOKEN = new_token().hex()
WORDS = [*agent_words("127.0.0.1:9", "a", cores=1), "--dir", "cache"]


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def agent_of(carrier: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in carrier.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "paceline" in child.cmdline() and child.name() != "sh":
                found.append(child)
    return found


@pytest.mark.parametrize("victim", ["carrier", "shell"])
def test_the_death_of_the_carrier_ends_the_agent_and_removes_its_folder(victim: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CARRY, TOKEN, *WORDS]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        carrier = psutil.Process(process.pid)
        until(lambda: list(tmp_path.glob("cache/*/lock")), "the agent never began")
        until(lambda: len(carrier.children(recursive=True)) > 2, "the agent has no fork server")
        family = carrier.children(recursive=True)
        (shell,) = carrier.children()  # an engine kills its own children when it ends a process
        os.kill(process.pid if victim == "carrier" else shell.pid, signal.SIGKILL)
        until(lambda: not any(map(lives, family)), "a process is left")
        until(lambda: list((tmp_path / "cache").iterdir()) == [], "the folder of the agent is left")
        process.kill()


def test_the_token_is_in_no_command_line_and_in_no_environment(tmp_path: Path) -> None:
    carried = CarriedAgent([*WORDS[:-1], str(tmp_path / "cache")], TOKEN, environment())
    me = psutil.Process()
    until(lambda: list(tmp_path.glob("cache/*/lock")), "the agent never began")
    (agent,) = [child for child in agent_of(me) if "agent" in child.cmdline()]
    until(lambda: agent.children(), "the agent has no fork server")
    for process in (agent, *agent.parents()[:1], *agent.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            assert TOKEN not in " ".join(process.cmdline())
            assert TOKEN not in process.environ().values()
    until_it_handles(agent.pid)
    agent.terminate()
    found = carried.wait(30.0)
    assert found is not None
    assert found[0] == 0
    assert found[1].splitlines()[-1] == "paceline: host a: ended by a signal"


def test_an_agent_that_cannot_begin_tells_its_exit_code_and_why(tmp_path: Path) -> None:
    found = CarriedAgent(["agent", "nowhere"], TOKEN, environment()).wait(30.0)
    assert found is not None
    assert found[0] == 2
    assert "--token-file" in found[1]
