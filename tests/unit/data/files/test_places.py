from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import fsspec.asyn
import pytest
from tests.kit.web_server import web_server

from paceline.data.files import places
from paceline.data.files.cache import BlockCache
from paceline.data.files.places import list_files, shown
from paceline.errors import DataUnreachableError, UsageError


@pytest.fixture(scope="module", autouse=True)
def _thread() -> None:
    """The one thread of fsspec, which stays for the life of a process."""
    fsspec.asyn.get_loop()


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for name in ("b.csv", "a.csv", "deep/c.csv", "_hidden.csv", "other.txt"):
        fs.pipe_file(f"/data/{name}", f"content of {name}".encode())
    yield "memory://data"
    fs.rm("/data", recursive=True)


def names(found: places.Files) -> list[str]:
    return [file.name.rpartition("data/")[2] for file in found.files]


def test_files_are_sorted_and_hidden_ones_left_out(memory: str, tmp_path: Path) -> None:
    local = tmp_path / "data"
    fsspec.filesystem("memory").get("/data", str(local), recursive=True)
    for where in (memory, str(local), f"file://{local}"):
        assert names(list_files(where, (".csv",))) == ["a.csv", "b.csv", "deep/c.csv"]
        assert names(list_files(f"{where}/*.csv", ())) == ["a.csv", "b.csv"]
        assert names(list_files([f"{where}/b.csv", f"{where}/a.csv"], ())) == ["b.csv", "a.csv"]
        found = list_files(f"{where}/b.csv", ())
        assert (found.read(0), found.read(0, 3, 7), found.read(0, 90)) == (b"content of b.csv", b"tent", b"")
        with found.opened(0) as opened:
            opened.seek(-5, 2)
            assert opened.read() == b"b.csv"
        copy = pickle.loads(pickle.dumps(found))
        assert copy.read(0) == found.read(0)
        assert copy.digests() == found.digests()


@pytest.mark.parametrize("where", ["memory://data/none.csv", "memory://data/*.none", "/none/x.csv", "/none/*.csv"])
def test_a_file_that_is_not_there_is_named(where: str, memory: str) -> None:
    with pytest.raises(DataUnreachableError, match=r"no such file"):
        list_files(where, ())


def test_addresses_of_two_schemes_are_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="one scheme, not file, memory"):
        list_files([memory, "/tmp"], ())


def test_an_unknown_scheme_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot read nosuch://"):
        list_files("nosuch://bucket/x.csv", ())

    def missing(protocol: str, **options: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[s3\]'"):
        list_files("s3://bucket/x.csv", ())


def test_no_secret_of_an_address_is_shown(tmp_path: Path) -> None:
    assert shown("https://me:secret@host:80/a.csv?X-Signature=secret#x") == "https://host:80/a.csv"
    (tmp_path / "a.csv").write_text("x\n1\n")
    with web_server(tmp_path, lambda number, path: 200 if number == 1 else 403) as (address, _):
        found = list_files(f"{address}/a.csv?key=secret", ())
        with pytest.raises(DataUnreachableError, match="access was refused") as error:
            found.read(0)
    assert "secret" not in f"{error.value} {found!r} {found.files!r} {found.files[0].name}"


def test_blocks_of_a_remote_file_are_read_once_for_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "BLOCK", 1000)
    content = bytes(range(250)) * 10
    (tmp_path / "a.bin").write_bytes(content)
    with web_server(tmp_path) as (address, server):
        cache = BlockCache(tmp_path / "cache", 1 << 20)
        found = list_files(f"{address}/a.bin", (), None, cache)
        assert found.read(0, 900, 1100) == content[900:1100]
        found.close()  # the third block is read ahead
        asked = server.requests
        assert found.read(0) == content
        assert list_files(f"{address}/a.bin", (), None, BlockCache(tmp_path / "cache", 1 << 20)).read(0) == content
    assert server.requests <= asked + 2  # the second listing


def test_an_answer_that_is_cut_short_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(b"x" * 100)
    with web_server(tmp_path) as (address, _):
        found = list_files(f"{address}/a.bin", ())
        whole = found.fs().cat_file
        answers = [b"x" * 40]

        def cut(path: str, **span: int) -> bytes:
            return answers.pop() if answers else whole(path, **span)

        monkeypatch.setattr(found.fs(), "cat_file", cut)
        assert found.read(0) == b"x" * 100
