"""Errors of a protocol's own package become `OSError` at the storage."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.checkpoint.storage import FsspecStorage, open_storage


class NoCredentialsError(Exception):
    """As the package of an object store raises it: no `OSError`."""


def _refuse(*arguments: Any, **options: Any) -> Any:
    raise NoCredentialsError("Unable to locate credentials\nand a second line")


def test_an_error_of_the_protocols_package_is_an_os_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("memory://foreign-errors")
    assert isinstance(storage, FsspecStorage)
    for method in ("exists", "makedirs", "cat_file"):
        monkeypatch.setattr(type(storage._fs._fs), method, _refuse)
    for call in (storage.folders, lambda: storage.claim("a", b""), lambda: storage.read("a")):
        with pytest.raises(OSError, match=r"NoCredentialsError: Unable to locate credentials$"):
            call()


def test_errors_that_say_what_happened_stay_what_they_are() -> None:
    with pytest.raises(FileNotFoundError):
        open_storage("memory://foreign-errors").read("missing")
