"""A content is in the store complete and checked, or not at all; the store is bounded."""

from __future__ import annotations

import threading
from hashlib import sha256
from pathlib import Path

import pytest

from paceline.core.files.manifest import FileEntry, FileManifest, manifest_of
from paceline.engines.bundle.store import CHUNK_NBYTES, Store
from paceline.errors import FilesError

CONTENT = bytes(range(256)) * 2000
DIGEST = sha256(CONTENT).hexdigest()


def chunks(content: bytes, nbytes: int = 1000) -> list[bytes]:
    return [content[at : at + nbytes] for at in range(0, len(content), nbytes)]


def one(nbytes: int = len(CONTENT)) -> FileManifest:
    return manifest_of([FileEntry("x", DIGEST, nbytes), FileEntry("y", DIGEST, nbytes)])


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_content_comes_back_in_small_chunks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.missing(one()) == {DIGEST}
    store.write(DIGEST, len(CONTENT), chunks(CONTENT))
    assert store.missing(one()) == set()
    read = list(store.read(DIGEST))
    assert b"".join(read) == CONTENT
    assert max(map(len, read)) <= CHUNK_NBYTES
    assert store.read_at(DIGEST, 256, 3) == b"\0\1\2"
    with pytest.raises(FilesError, match="ends before"):
        store.read_at(DIGEST, len(CONTENT) - 1, 2)


@pytest.mark.parametrize(
    ("content", "nbytes", "words"),
    [
        (CONTENT[:-1], len(CONTENT), "bytes, not"),
        (CONTENT + b"x", len(CONTENT), "more than"),
        (CONTENT[:-1] + b"x", len(CONTENT), "SHA-256"),
        (CONTENT, len(CONTENT) - 1, "more than"),
    ],
)
def test_a_content_of_another_size_or_hash_leaves_nothing(
    tmp_path: Path, content: bytes, nbytes: int, words: str
) -> None:
    with pytest.raises(FilesError, match=words):
        Store(tmp_path).write(DIGEST, nbytes, chunks(content))
    assert files(tmp_path) == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> list[bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).write(DIGEST, len(CONTENT), (part for part in broken()))
    assert files(tmp_path) == []


@pytest.mark.parametrize("digest", ["", "..", "../../etc/passwd", DIGEST[:-1], DIGEST.upper(), DIGEST + "/x"])
def test_only_a_digest_names_a_content(tmp_path: Path, digest: str) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(FilesError):
        store.write(digest, 1, [b"x"])
    with pytest.raises(FilesError):
        list(store.read(digest))
    with pytest.raises(FilesError):
        store.read_at(digest, 0, 1)


def test_a_damaged_content_is_found_when_it_is_read_and_asked_for_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(DIGEST, len(CONTENT), chunks(CONTENT))
    (path,) = files(tmp_path)
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(FilesError, match="damaged"):
        list(store.read(DIGEST))
    assert store.missing(one()) == {DIGEST}
    path.write_bytes(CONTENT[:-1])
    assert store.missing(one()) == {DIGEST}, "a content of another size is missing"


def test_a_link_in_the_store_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENT)
    store = Store(tmp_path / "store")
    (tmp_path / "store" / DIGEST[:2]).mkdir(parents=True)
    (tmp_path / "store" / DIGEST[:2] / DIGEST).symlink_to(outside)
    assert store.missing(one()) == {DIGEST}
    with pytest.raises(FilesError):
        list(store.read(DIGEST))
    store.write(DIGEST, len(CONTENT), chunks(CONTENT))
    assert store.missing(one()) == set()


def test_a_store_takes_no_more_than_its_limit(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_nbytes=len(CONTENT) + 10)
    store.write(DIGEST, len(CONTENT), chunks(CONTENT))
    other = sha256(bytes(11)).hexdigest()
    with pytest.raises(FilesError, match="--files-limit"):
        store.missing(manifest_of([FileEntry("x", other, 11)]))
    with pytest.raises(FilesError, match="refused"):
        store.writing(other, len(CONTENT) + 11)
    assert store.missing(one()) == set()


def test_any_number_of_writers_may_write_one_content(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def write() -> None:
        try:
            Store(tmp_path).write(DIGEST, len(CONTENT), chunks(CONTENT))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [path.name for path in files(tmp_path)] == [DIGEST]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FilesError, match="cannot write"):
        Store(tmp_path / "file").write(DIGEST, len(CONTENT), chunks(CONTENT))
