"""What agents return: logs of roles, and files that scripts saved, which never leave their directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.engines.remote_files import RemoteLogs, SavedFiles
from paceline.messages.hosts import SavedPiece
from paceline.runtime.rundir import RunDir
from paceline.runtime.saved_files import note_saved, take_saved


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_file_is_complete_or_absent(work: Path) -> None:
    files = SavedFiles(work)
    assert files.add("a", SavedPiece("out/model.bin", 0, b"abc", False)) == ""
    assert not (work / "out" / "model.bin").exists()
    assert files.add("a", SavedPiece("out/model.bin", 3, b"def", True)) == ""
    assert (work / "out" / "model.bin").read_bytes() == b"abcdef"
    assert [path.name for path in (work / "out").iterdir()] == ["model.bin"]


def test_a_file_that_is_saved_again_replaces_the_earlier_one(work: Path) -> None:
    files = SavedFiles(work)
    files.add("a", SavedPiece("model", 0, b"a long one", True))
    assert files.add("b", SavedPiece("model", 0, b"short", True)) == ""
    assert (work / "model").read_bytes() == b"short"


def test_the_last_pieces_of_a_file_that_is_complete_are_dropped_when_they_come_again(work: Path) -> None:
    files = SavedFiles(work)
    files.add("a", SavedPiece("model", 0, b"abc", False))
    files.add("a", SavedPiece("model", 3, b"def", True))
    assert SavedFiles(work).add("a", SavedPiece("model", 3, b"def", True)) == ""
    assert (work / "model").read_bytes() == b"abcdef"
    assert "only a part of other" in files.add("a", SavedPiece("other", 3, b"def", True))
    assert not (work / "other").exists()


@pytest.mark.parametrize("path", ["../model", "/etc/model", "a/../../model", "", "a\0b", ".."])
def test_a_path_that_leaves_the_directory_is_refused(work: Path, path: str) -> None:
    before = sorted(work.parent.rglob("*"))
    assert "which is refused" in SavedFiles(work).add("evil", SavedPiece(path, 0, b"x", True))
    assert sorted(work.parent.rglob("*")) == before


def test_a_link_that_leads_out_of_the_directory_is_refused(work: Path) -> None:
    outside = work.parent / "outside"
    outside.mkdir()
    (work / "link").symlink_to(outside)
    assert "it is refused" in SavedFiles(work).add("evil", SavedPiece("link/model", 0, b"x", True))
    (work / ".model.evil.tmp").symlink_to(outside / "target")
    assert "cannot be written" in SavedFiles(work).add("evil", SavedPiece("model", 0, b"x", True))
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_the_file_is_replaced_not_followed(work: Path) -> None:
    target = work.parent / "target"
    target.write_text("kept")
    (work / "model").symlink_to(target)
    assert SavedFiles(work).add("a", SavedPiece("model", 0, b"x", True)) == ""
    assert target.read_text() == "kept"
    assert not (work / "model").is_symlink()


def test_a_file_that_cannot_be_written_is_named(work: Path) -> None:
    (work / "model").mkdir()
    (work / "model" / "inside").touch()
    assert "which host a returned, cannot be written" in SavedFiles(work).add("a", SavedPiece("model", 0, b"x", True))


def test_the_lines_of_a_role_go_to_its_log(tmp_path: Path) -> None:
    logs = RemoteLogs(tmp_path)
    logs.begin("worker-0")
    assert (tmp_path / "worker-0.log").read_text() == ""
    logs.add("worker-0", "one")
    logs.add("worker-0", "two")
    logs.begin("worker-0")
    assert (tmp_path / "worker-0.log").read_text() == "one\ntwo\n"


def test_a_run_goes_on_without_logs_if_they_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = RemoteLogs(tmp_path / "nowhere")
    logs.add("worker-0", "one")
    logs.add("worker-0", "two")
    assert len(caplog.records) == 1, "said once"


def test_the_files_that_a_worker_saved_are_taken_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert take_saved(run, "worker-0") == []
    note_saved(run, "worker-0", tmp_path / "a model\n")
    note_saved(run, "worker-0", tmp_path / "b")
    note_saved(run, "worker-1", tmp_path / "c")
    assert take_saved(run, "worker-0") == [tmp_path / "a model\n", tmp_path / "b"]
    assert take_saved(run, "worker-0") == []
    assert take_saved(run, "worker-1") == [tmp_path / "c"]
