"""A manifest names the files of the script's directory, within a limit, and their contents can be kept."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from paceline.core.files import manifest
from paceline.engines.bundle import collect as collecting
from paceline.engines.bundle.collect import collect, fill
from paceline.engines.bundle.store import Store
from paceline.errors import FilesError


def project(root: Path) -> Path:
    (root / "lib").mkdir()
    (root / "train.py").write_text("import lib.net, ignored\n")
    (root / "lib/net.py").write_text("x = 1\n")
    (root / "ignored.py").write_text("y = 1\n")
    (root / "unused.py").write_text("z = 1\n")
    (root / "go.sh").write_text("#!/bin/sh\n")
    (root / "go.sh").chmod(0o755)
    (root / ".gitignore").write_text("ignored.py\nunused.py\n")
    return root / "train.py"


def test_a_manifest_has_the_files_their_contents_and_what_may_be_executed(tmp_path: Path) -> None:
    made = collect(tmp_path, project(tmp_path))
    assert [(e.path, e.executable) for e in made.entries] == [
        (".gitignore", False),
        ("go.sh", True),
        ("ignored.py", False),
        ("lib/net.py", False),
        ("train.py", False),
    ], "a module that the script imports belongs to it, even if git ignores it"
    net = made.entries[3]
    assert (net.sha256, net.nbytes) == (sha256(b"x = 1\n").hexdigest(), 6)
    assert collect(tmp_path, tmp_path / "train.py").digest == made.digest
    (tmp_path / "lib/net.py").write_text("x = 2\n")
    assert collect(tmp_path, tmp_path / "train.py").digest != made.digest


def test_a_limit_names_the_largest_files_and_folders_and_the_remedy(tmp_path: Path) -> None:
    script = project(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / f"data/{number}.bin").write_bytes(bytes(1 << 20))
    (tmp_path / "model.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(FilesError, match=r"5\.0 MiB; at most 4\.0 MiB are allowed \(--files-limit\)") as error:
        collect(tmp_path, script, 4 << 20)
    assert "data/ (3.0 MiB), model.bin (2.0 MiB)" in str(error.value)
    assert ".gitignore" in str(error.value)
    assert len(collect(tmp_path, script, 6 << 20).entries) == 9
    assert len(collect(tmp_path, script, 3 << 20, exclude=[tmp_path / "data"]).entries) == 6


def test_too_many_files_are_named_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = project(tmp_path)
    monkeypatch.setattr(collecting, "MAX_FILES", 4)
    assert manifest.MAX_FILES > 4
    with pytest.raises(FilesError, match=r"has 5 files; at most 4 files are allowed"):
        collect(tmp_path, script)


def test_a_name_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    script = project(tmp_path)
    (tmp_path / "a\\b.txt").write_text("x")
    with pytest.raises(FilesError, match="backslash"):
        collect(tmp_path, script)


def test_contents_are_kept_once_and_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    made = collect(code, project(code))
    store = Store(tmp_path / "store")
    fill(store, made, code)
    assert store.missing(made) == set()
    (code / "lib/net.py").write_text("x = 1, 2, 3\n")
    fill(store, made, code)
    with pytest.raises(FilesError, match=r"net\.py has changed"):
        fill(Store(tmp_path / "other"), made, code)
    (code / "go.sh").unlink()
    with pytest.raises(FilesError, match=r"cannot read .*go\.sh"):
        fill(Store(tmp_path / "third"), made, code)
