"""The directory of a run: its token, its announcements and its lock."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from paceline.errors import ClusterLostError, UsageError
from paceline.runtime.rundir import ENDED, UNFINISHED, RunDir, begin_run, finish_run, next_run, point_latest


def test_a_new_run_has_a_secret_of_its_own(tmp_path: Path) -> None:
    runs = [RunDir.create(tmp_path / name) for name in ("a", "b")]
    assert stat.S_IMODE(runs[0].token_file.stat().st_mode) == 0o600
    assert len(runs[0].token()) >= 16
    assert runs[0].token() != runs[1].token()


@pytest.mark.parametrize("left", ["token", "log.sqlite"])
def test_a_used_directory_is_refused(left: str, tmp_path: Path) -> None:
    (tmp_path / left).touch()
    with pytest.raises(UsageError, match=r"holds a run already: name another one \(--dir"):
        RunDir.create(tmp_path)


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path).logs.is_dir()


def test_a_directory_without_a_run_has_no_token_and_no_coordinator(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        RunDir(tmp_path).token()
    assert RunDir(tmp_path).coordinator() is None
    with pytest.raises(ClusterLostError, match="no coordinator has announced itself"):
        RunDir(tmp_path).wait_for_coordinator(0.05)


def test_the_newest_announcement_of_a_coordinator_counts(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.announce("tcp://127.0.0.1:1", 1)
    assert run.wait_for_coordinator(1.0) == "tcp://127.0.0.1:1"
    run.announce("tcp://127.0.0.1:2", 2)
    assert run.coordinator() == "tcp://127.0.0.1:2"
    assert {p.name for p in run.path.iterdir()} == {"token", "logs", "coordinator.json"}


def test_runs_are_numbered_and_the_latest_is_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first, second, other = (next_run(root, stem) for stem in ("train", "train", "eval"))
    assert [p.name for p in (first, second, other)] == ["train-0001", "train-0002", "eval-0001"]
    for path in (first, second):
        point_latest(path)
        assert (root / "latest").resolve() == path
    (root / "latest").unlink()
    (root / "latest").mkdir()
    point_latest(second)
    assert not (root / "latest").is_symlink(), "a directory of the user is left alone"
    assert {p.name for p in root.iterdir()} == {"train-0001", "train-0002", "eval-0001", "latest"}


def test_a_run_may_be_named_by_the_link_to_the_latest(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first, second = (next_run(root, "train") for _ in range(2))
    point_latest(second)
    assert RunDir.named(root / "latest").path == second
    point_latest(root / "latest")
    assert (root / "latest").resolve() == second, "a link is never made to point to itself"
    (root / "latest").unlink()
    (root / "latest").symlink_to("latest")
    with pytest.raises(UsageError, match="latest is not a run directory"):
        RunDir.named(root / "latest")
    point_latest(first)
    assert (root / "latest").resolve() == first, "a link to itself, which earlier versions made, is replaced"
    (tmp_path / "elsewhere").symlink_to(first)
    assert RunDir.named(tmp_path / "elsewhere").path == first


def test_the_summary_of_a_finished_run_that_is_resumed_stays_and_does_not_count(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    begin_run(run)
    assert not run.done
    assert run.end() is None
    finish_run(run, "first")
    assert run.done
    begin_run(run)
    assert run.summary_file.read_text() == "first"
    assert not run.done
    end = run.end()
    assert end is not None
    assert (end["state"], end["reason"]) == (UNFINISHED, "the launcher of a resumed run was killed")
    run.write_end({"state": ENDED, "code": 130})
    assert not run.done
    begin_run(run)
    finish_run(run, "second")
    assert run.done
    assert run.end() is None
    assert run.summary_file.read_text() == "second"


def test_a_run_has_one_launcher(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert not run.launched
    with run.launching():
        assert run.launched
        with pytest.raises(UsageError, match="is running: wait for its end"), run.launching():
            pass
        assert run.launched
    assert not run.launched
    with run.launching():
        pass


def test_a_reader_never_sees_half_an_announcement(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    for number in range(50):
        run.announce(f"tcp://127.0.0.1:{number}", number)
        run.write_plan({"number": number})
        assert run.coordinator() == f"tcp://127.0.0.1:{number}"
        assert run.plan() == {"number": number}
