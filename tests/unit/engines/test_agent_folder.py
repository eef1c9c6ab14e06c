"""The folder of an agent: nobody removes it while the agent lives, and nothing is left of one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engines.agent_folder import AgentFolder

HOLDS = "import sys, time; from pathlib import Path; from paceline.engines.agent_folder import AgentFolder; "


def test_two_agents_have_folders_of_their_own_and_remove_them(tmp_path: Path) -> None:
    one, two = AgentFolder(tmp_path / "cache", "a"), AgentFolder(tmp_path / "cache", "a")
    (one.path / "files").mkdir()
    assert one.path != two.path
    one.close()
    assert list((tmp_path / "cache").iterdir()) == [two.path]
    two.close()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_in_a_relative_place_has_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = AgentFolder(Path("cache"), "a")
    assert folder.path.is_absolute()
    folder.close()


def test_the_folder_of_a_killed_agent_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = HOLDS + f"f = AgentFolder(Path({str(tmp_path)!r}), 'a'); print(f.path, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        left = Path(process.stdout.readline().strip())
    AgentFolder(tmp_path, "b").close()
    assert left.exists(), "its agent lives"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    AgentFolder(tmp_path, "b").close()
    assert not left.exists()
    (tmp_path / "something else").mkdir()
    AgentFolder(tmp_path, "b").close()
    assert (tmp_path / "something else").exists()
