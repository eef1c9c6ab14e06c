"""What the command line refuses: exit code 2, one line that names it, and nothing is made or started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, run

from paceline.config.load import worker_spec
from paceline.errors import UsageError

pytestmark = pytest.mark.usefixtures("warm")  # commands are forked, which takes a tenth of the time of a start


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "--mode", "sync", "here.py"], "mode 'sync' is not known; use bsp, ssp:K"),
        (["run", "--mode", "ssp", "here.py"], "mode 'ssp' is not known"),
        (["run", "--mode", "ssp:-1", "here.py"], "mode 'ssp:-1' is not known"),
        (["run", "-w", "0", "here.py"], "--workers must be at least 1, not 0"),
        (["run", "--servers", "-3", "here.py"], "--servers must be at least 1, not -3"),
        (["run", "-s", "2", "--replicas", "2", "here.py"], "--replicas 2 needs 3 servers"),
        (["run", "--replicas", "-1", "here.py"], "--replicas must be 0 or more, not -1"),
        (["run", "--slots", "0", "here.py"], "--slots must be at least 1, not 0"),
        (["run", "--threads", "0", "here.py"], "--threads must be at least 1, not 0"),
        (
            ["run", "-w", "many", "here.py"],
            "--workers must be a whole number, or auto for a run on several hosts: 'many'",
        ),
        (["run", "--wrokers", "2", "here.py"], "--wrokers"),
        (["run", "there.py"], "there.py is not a file"),
        (["run"], "SCRIPT"),
        (["run", "-m"], "-m: give the name of the module to run"),
        (["run", "-m", "here.py"], "-m here.py: this is not the name of a module"),
        (["run", "-m", "nowhere"], "-m nowhere: there is no module nowhere in "),
        (["join", "-m", "used"], "-m: give the name of the module to run"),
        (["run", "--dir", "used", "here.py"], "used holds a run already"),
        (
            ["run", "--checkpoint-every", "often", "here.py"],
            "--checkpoint-every must be a number of steps (500), of seconds (30s), or 0 for never, not 'often'",
        ),
        (
            ["run", "--checkpoint-every", "-5", "here.py"],
            "--checkpoint-every must be a number of steps (500), of seconds (30s), or 0 for never, not '-5'",
        ),
        (["run", "--keep", "0", "here.py"], "--keep must be at least 1, not 0"),
        (["run", "--max-restarts", "-1", "here.py"], "--max-restarts must be 0 or more, not -1"),
        (["run", "--max-steps", "-1", "here.py"], "--max-steps must be 0 or more, not -1"),
        (["run", "--checkpoints", "nowhere://at/all", "here.py"], "cannot keep checkpoints at nowhere://at/all"),
        (
            ["run", "--checkpoints", "gs://bucket/run", "here.py"],
            "install gcsfs to access Google Storage (pip install gcsfs)",
        ),
        (["run", "--files-limit", "0", "here.py"], "--files-limit must be at least 1, not 0"),
        (["run", "--resume", "memory://nothing"], "there is no complete checkpoint at memory://nothing"),
        (["run", "--resume", "gs://bucket/run"], "install gcsfs to access Google Storage (pip install gcsfs)"),
        (["run", "--resume", "empty"], "empty is not a run directory"),
        (["run", "--resume", "missing", "here.py"], "missing is not a run directory"),
        (["join"], "RUN"),
        (["join", "missing", "here.py"], "missing is not a run directory"),
        (["join", "used", "here.py"], "used was not started by `paceline run`"),
        (["scale", "-w", "2"], "runs/latest is not a run directory"),
        (["scale", "used"], "give --workers, --servers, --samplers or several of them"),
        (["scale", "used", "-s", "0"], "--servers must be at least 1, not 0"),
        (["status"], "runs/latest is not a run directory"),
        (["status", "empty"], "empty is not a run directory"),
        (["fly"], "fly"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_exit_with_2_name_the_problem_and_start_nothing(
    words: list[str], named: str, tmp_path: Path
) -> None:
    (tmp_path / "here.py").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "token").write_text("00" * 32)
    (tmp_path / "empty").mkdir()
    done = run([*PACELINE, *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert "Traceback" not in done.out
    assert not (tmp_path / "runs").exists()


def test_a_wrong_environment_is_refused_before_a_directory_is_made(tmp_path: Path) -> None:
    (tmp_path / "here.py").touch()
    done = run([*PACELINE, "run", "here.py"], tmp_path, timeout_s=20, PACELINE_SLOTS="many").check(2)
    assert done.lines[-1] == "paceline: PACELINE_SLOTS must be a whole number, not 'many'"
    assert [path.name for path in tmp_path.iterdir()] == ["here.py"]


def test_zero_threads_are_refused() -> None:
    with pytest.raises(UsageError, match="PACELINE_THREADS"):
        worker_spec({"PACELINE_THREADS": "0"})
    assert worker_spec({}).threads == 1


@pytest.mark.parametrize("module", ["paceline", "paceline.cli.main"])
def test_the_module_behaves_like_the_command(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", module]
    assert (
        run([*command, "--help"], tmp_path, timeout_s=20).check().lines[0]
        == "Usage: paceline [OPTIONS] COMMAND [ARGS]..."
    )
    assert run([*command, "--version"], tmp_path, timeout_s=20).check().out.startswith("paceline, version ")
    wrong = run([*command, "run", "--wrokers", "2"], tmp_path, timeout_s=20).check(2)
    assert wrong.lines[:2] == [
        "Usage: paceline run [OPTIONS] [SCRIPT] [ARGUMENTS]...",
        "Try 'paceline run --help' for help.",
    ]
    refused = run([*command, "status", "nowhere"], tmp_path, timeout_s=20).check(2)
    assert refused.lines[-1].startswith("paceline: nowhere is not a run directory")
