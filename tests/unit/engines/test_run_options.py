"""The options of `paceline.launch`: names, types, and what is refused before anything is made or started."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.engines.run_options import in_python, read_arguments, read_options
from paceline.engines.run_request import request_run
from paceline.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker": 2}, "there is no option worker; do you mean workers?"),
        ({"verbosity": 2}, "there is no option verbosity"),
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"workers": 2.5}, "workers must be a whole number or a text, not 2.5"),
        ({"workers": True}, "workers must be a whole number or a text, not True"),
        ({"workers": "many"}, "workers must be a whole number, or auto for a run on several hosts: 'many'"),
        ({"workers": "auto"}, "workers: this is for runs on several hosts; add engine hosts, or leave it out"),
        ({"replicas": "1"}, "replicas must be a whole number, not '1'"),
        ({"replicas": 1}, "replicas 1 needs 2 servers"),
        ({"mode": "sync"}, "mode 'sync' is not known"),
        ({"mode": 3}, "mode must be a text, not 3"),
        ({"checkpoint_every": "often"}, "checkpoint_every must be a number of steps"),
        ({"files_limit": 0}, "files_limit must be at least 1, not 0"),
        ({"dir": 3}, "dir must be a path, not 3"),
        ({"same_cpu": "yes"}, "same_cpu must be True or False, not 'yes'"),
        ({"engine": "cloud"}, "engine must be one of local, hosts, ray, spark, not 'cloud'"),
        ({"engine": "hosts"}, "engine hosts: give listen=ADDR:PORT"),
        ({"engine": "hosts", "listen": "127.0.0.1:0"}, "give token_file=FILE (`paceline token FILE` makes one)"),
        ({"hosts": [1]}, "hosts must be a list of names, not [1]"),
        ({"hosts": "a"}, "hosts: this is for runs on several hosts"),
        ({"log_level": "loud"}, "log_level must be one of debug, info, warning, error, not 'loud'"),
        ({"allow_changes": True}, "allow_changes: only a resumed run can have changed code. Add resume=RUN"),
        ({"resume": "nowhere"}, "nowhere is not a run directory"),
        ({"adopt": "nowhere"}, "adopt nowhere: the run goes on as it was started: give no other option"),
        ({"show": "much"}, "show must be one of all, progress, none, not 'much'"),
        ({"args": "--epochs 3"}, "args must be a list"),
        ({"args": 3}, "args must be a list"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name_and_nothing_is_made(
    options: dict[str, Any], said: str, here: Path
) -> None:
    with pytest.raises(UsageError, match=f"^.*{re.escape(said)}"):
        paceline.launch("train.py", **options)
    assert [path.name for path in here.iterdir()] == ["train.py"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline")]


def test_a_script_that_is_missing_or_not_given_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there\.py is not a file"):
        paceline.launch("there.py")
    with pytest.raises(UsageError, match="give the SCRIPT to run, or resume=RUN"):
        paceline.launch()


def test_a_process_of_a_run_cannot_launch_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RUN", "/runs/mine")
    with pytest.raises(UsageError, match=r"belongs to the run in /runs/mine \(PACELINE_RUN is set\)"):
        paceline.launch("train.py")


def test_values_of_python_become_those_of_a_plan(here: Path) -> None:
    given = {
        "workers": 3,
        "servers": "2",
        "checkpoint_every": 5,
        "dir": here / "run",
        "seed": None,
        "shared_dir": False,
    }
    plan = request_run("train.py", ["--epochs", 3, Path("x")], given).pinned().plan
    assert (plan.workers, plan.servers, plan.checkpoint_every, plan.seed) == (3, 2, "5", None)
    assert plan.arguments == ("--epochs", "3", "x")
    assert (plan.run, plan.script, plan.cwd) == (here / "run", here / "train.py", here)


def test_every_path_of_a_pinned_plan_is_absolute(here: Path) -> None:
    given = {"summary": "s.json", "trace": "t.json", "checkpoints": "kept", "dir": "run"}
    plan = request_run("train.py", (), given).pinned().plan
    assert (plan.summary, plan.trace, plan.checkpoints) == (here / "s.json", here / "t.json", str(here / "kept"))
    assert plan.run == here / "run"
    other = request_run("train.py", (), {"checkpoints": "memory://kept", "dir": "run"}).pinned().plan
    assert other.checkpoints == "memory://kept"


def test_hosts_are_a_list_or_one_text(here: Path) -> None:
    base = {"engine": "hosts", "listen": "127.0.0.1:0", "dir": "run"}
    for hosts in ("a,b", ["a", "b"], ("a", "b")):
        found = request_run("train.py", (), {**base, "hosts": hosts}).plan.hosts
        assert found is not None
        assert (found.ssh, found.min_hosts) == (("a", "b"), 2)


def test_what_is_not_given_is_left_out() -> None:
    assert read_options({"seed": None, "keep": 2, "resume": Path("a/b"), "dir": "c"}) == {
        "keep": 2,
        "resume": "a/b",
        "dir": Path("c"),
    }
    assert read_arguments([]) == ()


def test_a_message_names_arguments_but_leaves_commands_alone() -> None:
    said = "--min-hosts 1: add --engine hosts and --token-file FILE (`paceline run --resume RUN`), not --unknown X"
    assert in_python(said) == (
        "min_hosts 1: add engine hosts and token_file=FILE (`paceline run --resume RUN`), not --unknown X"
    )
