"""Unpacking makes one directory, whole or not at all, and writes nowhere else."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.files.manifest import FileEntry, FileManifest, manifest_of
from paceline.engines.bundle import unpack as unpacking
from paceline.engines.bundle.store import Store
from paceline.engines.bundle.unpack import unpack
from paceline.errors import FilesError


def stored(store: Store, path: str, content: bytes = b"x", executable: bool = False) -> FileEntry:
    digest = sha256(content).hexdigest()
    store.write(digest, len(content), [content])
    return FileEntry(path, digest, len(content), executable)


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_the_files_are_there_with_their_contents_and_modes(tmp_path: Path, store: Store) -> None:
    entries = [stored(store, "train.py", b"a"), stored(store, "bin/go", b"b", True), stored(store, "a/b/c/empty", b"")]
    into = tmp_path / "run" / "code"
    unpack(manifest_of(entries), store, into)
    assert everything(into) == {"train.py": b"a", "bin/go": b"b", "a/b/c/empty": b""}
    assert os.access(into / "bin/go", os.X_OK)
    assert not (into / "train.py").stat().st_mode & 0o111
    assert [path.name for path in into.parent.iterdir()] == ["code"]


def test_unpacking_again_changes_nothing_and_finds_other_files(tmp_path: Path, store: Store) -> None:
    manifest = manifest_of([stored(store, "train.py", b"a"), stored(store, "lib/x.py", b"b")])
    into = tmp_path / "code"
    unpack(manifest, store, into)
    (into / "output.txt").write_text("made by the script")
    before = (into / "train.py").stat().st_mtime_ns
    unpack(manifest, store, into)
    assert (into / "train.py").stat().st_mtime_ns == before
    (into / "lib/x.py").write_text("changed")
    with pytest.raises(FilesError, match=r"another lib/x\.py"):
        unpack(manifest, store, into)
    (into / "lib/x.py").unlink()
    with pytest.raises(FilesError, match=r"without lib/x\.py"):
        unpack(manifest, store, into)


def test_a_link_or_a_file_in_the_way_is_refused(tmp_path: Path, store: Store) -> None:
    manifest = manifest_of([stored(store, "lib/x.py")])
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib/x.py").write_text("x")
    for number, target in enumerate((outside, tmp_path / "missing")):
        into = tmp_path / f"link{number}"
        into.symlink_to(target)
        with pytest.raises(FilesError, match="in the way"):
            unpack(manifest, store, into)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/lib").symlink_to(outside / "lib")
    with pytest.raises(FilesError, match="without"):
        unpack(manifest, store, tmp_path / "inside")
    assert everything(outside) == {"lib/x.py": b"x"}
    assert not (tmp_path / "missing").exists()


def test_a_missing_content_leaves_no_directory(tmp_path: Path, store: Store) -> None:
    entries = [stored(store, "a.py"), FileEntry("b.py", sha256(b"missing").hexdigest(), 7)]
    with pytest.raises(FilesError, match="cannot be read"):
        unpack(manifest_of(entries), store, tmp_path / "code")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_two_processes_may_unpack_at_once(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of([stored(store, "a.py", b"a")])
    into = tmp_path / "code"
    write = unpacking._write

    def slower(root: Path, entry: FileEntry, source: Store) -> None:
        monkeypatch.setattr(unpacking, "_write", write)
        write(root, entry, source)
        unpack(manifest, store, into)

    monkeypatch.setattr(unpacking, "_write", slower)
    unpack(manifest, store, into)
    assert everything(into) == {"a.py": b"a"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "store"]


def test_a_link_that_appears_while_unpacking_is_not_followed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of([stored(store, "lib/a.py"), stored(store, "lib/b.py")])
    outside = tmp_path / "outside"
    outside.mkdir()
    write = unpacking._write

    def replaced(root: Path, entry: FileEntry, source: Store) -> None:
        if entry.path == "lib/b.py":
            (root / "lib/a.py").unlink()
            (root / "lib").rmdir()
            (root / "lib").symlink_to(outside)
        write(root, entry, source)

    monkeypatch.setattr(unpacking, "_write", replaced)
    with pytest.raises(FilesError):
        unpack(manifest, store, tmp_path / "code")
    assert everything(outside) == {}


_PARTS = st.sampled_from(
    ["..", ".", "", "a", "b", "outside", "store", "/", "~", "a\\b", "\0", ".git", "code", "x" * 300]
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(path=st.one_of(st.lists(_PARTS, max_size=8).map("/".join), st.text(max_size=40)))
def test_no_path_leads_out_of_the_directory(tmp_path: Path, path: str) -> None:
    folder = Path(mkdtemp(dir=tmp_path))
    store = Store(folder / "store")
    entry = stored(store, path, b"payload")
    before = everything(folder)
    try:
        unpack(FileManifest((entry,)), store, folder / "code")  # made without a check
    except FilesError:
        assert everything(folder) == before
        return
    after = everything(folder)
    assert set(after) - set(before) == {f"code/{path}"}
