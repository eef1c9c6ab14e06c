"""The files of a run are those that git would not ignore; run directories and environments never are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paceline.engines.bundle import listing
from paceline.engines.bundle.listing import list_files
from paceline.errors import FilesError


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture(params=["git", "no repository", "no git"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is a work tree, that is none, and one on a machine without git."""
    root = tmp_path / "code"
    root.mkdir()
    if request.param == "git":
        git(root, "init", "--quiet")
    if request.param == "no git":
        monkeypatch.setattr(listing, "_git", lambda *arguments: None)
    return root


def test_runs_environments_and_caches_are_left_out(root: Path) -> None:
    write(root, "train.py", "lib/net.py", "lib/runs/own.py", "__pycache__/x.pyc", "lib/__pycache__/y.pyc")
    write(root, "runs/train-0001/token", "runs/other.txt", "deep/mine/token", "deep/mine/run.json", "deep/kept.txt")
    write(root, "env/pyvenv.cfg", "env/lib/x.py", "site-packages/y.py", "ckpt/i0000-v0000000001/COMPLETE")
    found = list_files(root, exclude=[root / "ckpt"])
    assert list(found) == ["deep/kept.txt", "lib/net.py", "lib/runs/own.py", "train.py"]
    assert found["lib/net.py"] == root / "lib/net.py"


def test_links_stand_for_what_they_point_to(root: Path) -> None:
    write(root, "train.py", "real/a.py", "real/inner/b.py", "runs/r/token", "runs/r/run.json", "runs/r/out.txt")
    (root / "copy.py").symlink_to("train.py")
    (root / "alias").symlink_to("real")
    (root / "real/up").symlink_to("..")
    (root / "real/inner/back").symlink_to("../../alias")
    (root / "latest").symlink_to("runs/r")
    (root / "nowhere").symlink_to("missing")
    (root / "self").symlink_to("self")
    found = list_files(root)
    assert {"train.py", "copy.py", "real/a.py", "alias/a.py", "alias/inner/b.py"} <= set(found)
    assert found["copy.py"] == root / "train.py"
    assert not {name.partition("/")[0] for name in found} & {"latest", "nowhere", "self", "runs"}
    assert len(found) < 20, "a circle of links ends"


def test_links_that_leave_the_directory_are_refused_by_name(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/secret.txt")
    write(root, "train.py")
    (root / "secret").symlink_to("../elsewhere/secret.txt")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FilesError, match=r"data, secret in .*\.gitignore"):
        list_files(root)


def test_git_says_what_is_ignored(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, "train.py", "data/big.bin", "notes.txt", ".config/a.toml", "gone.py", "sub/x.py", "sub/y.log")
    (tmp_path / ".gitignore").write_text("data/\n*.log\n")
    git(tmp_path, "add", "gone.py", "train.py")
    (tmp_path / "gone.py").unlink()
    assert list(list_files(tmp_path)) == [".config/a.toml", ".gitignore", "notes.txt", "sub/x.py", "train.py"]
    assert list(list_files(tmp_path / "sub")) == ["x.py"], "the rules of the folders above count"


def test_a_folder_that_the_repository_around_it_ignores_is_listed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, "scratch/train.py", "scratch/data/big.bin")
    (tmp_path / ".gitignore").write_text("scratch/\n")
    (tmp_path / "scratch/.gitignore").write_text("data/\n")
    assert list(list_files(tmp_path / "scratch")) == [".gitignore", "train.py"]
    assert list(list_files(tmp_path)) == [".gitignore"]


def test_without_a_repository_a_gitignore_counts_and_dot_folders_do_not(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "data/big.bin", ".venv/x.py", ".cache/y", "node_modules/z.js", ".env")
    (tmp_path / ".gitignore").write_text("data/\n")
    assert list(list_files(tmp_path)) == [".env", ".gitignore", "train.py"]
    assert not (tmp_path / ".git").exists()


def test_a_repository_within_the_directory_is_listed_by_its_own_rules(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    inner = tmp_path / "vendor" / "lib"
    inner.mkdir(parents=True)
    git(inner, "init", "--quiet")
    write(tmp_path, "train.py", "vendor/lib/a.py", "vendor/lib/b.log")
    (inner / ".gitignore").write_text("*.log\n")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "x")
    assert list(list_files(tmp_path)) == ["train.py", "vendor/lib/.gitignore", "vendor/lib/a.py"]


def test_names_with_spaces_and_letters_of_other_languages(root: Path) -> None:
    write(root, "a b/ü ß.py", "quote'\".txt")
    assert list(list_files(root)) == ["a b/ü ß.py", "quote'\".txt"]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert list_files(tmp_path / "missing") == {}
