"""A place of checkpoints has terms; each is taken once, and the newest one counts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.kit.checkpoint_files import taken

from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.checkpoint.terms import Term, check_term, newest_term, next_term, take_term
from paceline.errors import CheckpointError, DeposedError


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "ckpt" if request.param == "local" else f"memory://{tmp_path.name}")


def test_a_file_is_claimed_once(storage: Storage) -> None:
    assert storage.claim("terms/000001", b"mine")
    assert not storage.claim("terms/000001", b"another")
    assert storage.read("terms/000001") == b"mine"
    assert storage.files("terms") == ["000001"], "nothing else is left behind"


def test_a_file_is_claimed_once_on_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage = LocalStorage(tmp_path)
    assert storage.claim("terms/000001", b"mine")
    assert not storage.claim("terms/000001", b"another")
    assert storage.read("terms/000001") == b"mine"
    assert storage.files("terms") == ["000001"]


def test_terms_follow_each_other(storage: Storage) -> None:
    assert newest_term(storage) is None
    first = taken(storage, "host-a:/run")
    assert (first.number, first.holder) == (1, "host-a:/run")
    check_term(storage, first.number, first.key)
    second = taken(storage, "host-b:/run")
    assert newest_term(storage) == second
    check_term(storage, second.number, second.key)
    with pytest.raises(DeposedError, match=r"term 2; this run has term 1") as error:
        check_term(storage, first.number, first.key)
    assert error.value.place == storage.url
    with pytest.raises(DeposedError):
        take_term(storage, next_term(first, "host-c:/run"))
    assert newest_term(storage) == second


def test_the_run_directory_needs_no_term(storage: Storage) -> None:
    check_term(storage, 0, "")
    assert storage.files("terms") == []


def test_a_term_belongs_to_its_key(storage: Storage) -> None:
    mine = taken(storage)
    with pytest.raises(DeposedError):
        check_term(storage, 1, f"not {mine.key}")


def test_a_file_that_was_removed_or_damaged_is_named(storage: Storage) -> None:
    mine = taken(storage)
    storage.delete("terms/000001")
    with pytest.raises(CheckpointError, match="removed"):
        check_term(storage, 1, mine.key)
    with storage.create("terms/000001") as file:
        file.write(b"{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        newest_term(storage)
    with storage.create("terms/not-a-term") as file:
        file.write(b"{")
    with storage.create("terms/000001") as file:
        file.write(b'{"number": 1, "key": "k"}')
    assert newest_term(storage) == Term(1, "k")
