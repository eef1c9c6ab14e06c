"""A manifest is refused, before anything is made, unless all its files lie below one directory and fit."""

from __future__ import annotations

import tracemalloc
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.files.manifest import (
    MAX_DEPTH,
    MAX_FILES,
    MAX_MANIFEST_NBYTES,
    FileEntry,
    FileManifest,
    check_path,
    decode,
    manifest_of,
)
from paceline.errors import FilesError

DIGEST = sha256(b"x").hexdigest()


def entry(path: str, nbytes: int = 1, digest: str = DIGEST) -> FileEntry:
    return FileEntry(path, digest, nbytes)


def raw(*entries: FileEntry) -> bytes:
    """Encode a manifest as a peer would that checks nothing."""
    return msgspec.json.encode(FileManifest(entries))


def test_a_manifest_survives_its_encoding_and_its_digest_names_all_of_it() -> None:
    made = manifest_of([entry("b/c.py"), entry("a.py")])
    assert decode(made.encode()) == made
    assert [e.path for e in made.entries] == ["a.py", "b/c.py"]
    assert made.digest == decode(made.encode()).digest
    others = [
        manifest_of([entry("a.py")]),
        manifest_of([FileEntry("a.py", DIGEST, 1, True), entry("b/c.py")]),
        manifest_of([entry("a.py"), entry("b/d.py")]),
        manifest_of([entry("a.py"), entry("b/c.py", 1, sha256(b"y").hexdigest())]),
    ]
    assert len({made.digest, *(other.digest for other in others)}) == 5
    assert (made.nbytes, made.contents) == (2, {DIGEST: 1})


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "//x",
        "..",
        "../x",
        "a/../../x",
        "a/..",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "..\\x",
        "C:\\x",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "\udc80",
        ".git/hooks/post-checkout",
        "sub/.GIT/config",
        "a" * 256,
        "/".join(["a"] * (MAX_DEPTH + 1)),
        "/".join(["a" * 200] * 6),
    ],
)
def test_a_path_that_may_leave_its_directory_is_refused(path: str) -> None:
    with pytest.raises(FilesError):
        check_path(path)


@pytest.mark.parametrize("path", ["a", "a.py", "a b/ü.py", "..a", "a..", "...", ".hidden/x", ".gitignore", "a" * 255])
def test_a_plain_path_is_allowed(path: str) -> None:
    check_path(path)


_PARTS = st.sampled_from(["..", ".", "", "a", "b", ".git", "~", "a\\b", "\0", "C:", "/", "x" * 300, "ü"])


@settings(max_examples=200)
@given(st.one_of(st.lists(_PARTS, max_size=40).map("/".join), st.text(max_size=80)))
def test_whatever_path_is_allowed_stays_below_its_directory(path: str) -> None:
    try:
        check_path(path)
    except FilesError:
        return
    parts = path.split("/")
    assert path
    assert not path.startswith("/")
    assert not {"", ".", "..", ".git"} & set(parts)
    assert len(parts) <= MAX_DEPTH
    assert "\\" not in path
    assert "\0" not in path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a manifest"),
        (b"[" * 100_000, "not a manifest"),
        (b'{"entries": [["a", 1, 1]]}', "not a manifest"),
        (raw(entry("a"), entry("a")), "twice"),
        (raw(entry("b"), entry("a")), "order"),
        (raw(entry("a"), entry("a/b")), "a file and a folder"),
        (raw(entry("a"), entry("a.b"), entry("a/b/c")), "a file and a folder"),
        (raw(entry("a", -1)), "impossible size"),
        (raw(entry("a", 1), entry("b", 2)), "impossible size"),
        (raw(entry("a", 1, "../../etc")), "no SHA-256"),
        (raw(entry("a", 1, DIGEST.upper())), "no SHA-256"),
        (raw(entry("a", 10 << 30)), "at most"),
        (raw(entry("a", 1 << 200)), "at most"),
        (b" " * (MAX_MANIFEST_NBYTES + 1), "bytes"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(FilesError, match=words):
        decode(content)


def test_too_many_files_are_refused() -> None:
    entries = [entry(f"{number:06d}") for number in range(MAX_FILES + 1)]
    with pytest.raises(FilesError, match=f"at most {MAX_FILES}"):
        decode(raw(*entries))
    assert len(decode(raw(*entries[:-1])).entries) == MAX_FILES


def test_a_manifest_of_10_gb_is_refused_before_anything_is_allocated() -> None:
    content = raw(entry("large", 10 << 30))
    tracemalloc.start()
    try:
        with pytest.raises(FilesError, match="--files-limit"):
            decode(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_only_a_files_error_is_raised(content: bytes) -> None:
    with pytest.raises(FilesError):
        decode(b"\x00" + content)


@settings(max_examples=200)
@given(st.data())
def test_a_manifest_that_was_changed_on_its_way_is_refused_or_checked(data: st.DataObject) -> None:
    content = bytearray(raw(entry("a.py"), entry("b/c.py")))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(content))
    except FilesError:
        return
    for each in found.entries:
        check_path(each.path)
