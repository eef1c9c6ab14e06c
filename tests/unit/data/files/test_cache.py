from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from paceline.data.files import cache as module
from paceline.data.files.cache import BlockCache, ReadAhead


def content(number: int) -> bytes:
    return bytes([number]) * 1000


def fail() -> bytes:
    raise AssertionError("the block is in the cache")


def test_a_block_is_fetched_once_for_all_caches_of_a_host(tmp_path: Path) -> None:
    first, second = BlockCache(tmp_path, 1 << 20), BlockCache(tmp_path, 1 << 20)
    assert first.read("ab", 0, 1000, lambda: content(1)) == content(1)
    assert second.read("ab", 0, 1000, fail) == content(1)
    assert (first.misses, first.hits, second.hits) == (1, 0, 1)


def test_a_damaged_block_is_fetched_again(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1 << 20)
    cache.read("ab", 0, 1000, lambda: content(1))
    (path,) = (tmp_path / "blocks").rglob("0")
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    assert cache.read("ab", 0, 1000, lambda: content(2)) == content(2)


def test_the_blocks_that_were_used_last_stay(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 20_000)
    for number in range(40):
        cache.read("ab", number, 1000, lambda number=number: content(number))  # type: ignore[misc]
        for path in (tmp_path / "blocks").rglob(str(number)):
            os.utime(path, (number, number))
    kept = sorted(int(path.name) for path in (tmp_path / "blocks").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in (tmp_path / "blocks").rglob("*") if path.is_file()) <= 22_000
    assert kept == list(range(kept[0], 40))


def test_without_room_on_the_disk_blocks_are_fetched_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_store", full)
    cache = BlockCache(tmp_path, 1 << 20)
    for _ in range(2):
        assert cache.read("ab", 0, 1000, lambda: content(3)) == content(3)
    assert cache.misses == 2
    assert [r.message for r in caplog.records if "No space left" in r.message] == [caplog.records[0].message]


def test_threads_that_need_one_block_fetch_it_once(tmp_path: Path) -> None:
    fetched = []

    def fetch() -> bytes:
        fetched.append(1)
        return content(1)

    def read() -> None:
        assert BlockCache(tmp_path, 1 << 20).read("ab", 7, 1000, fetch) == content(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1


def test_reading_ahead_drops_errors() -> None:
    ahead = ReadAhead()

    def read() -> None:
        raise OSError("no")

    ahead.start(read)
    ahead.wait(5.0)
    ahead.start(lambda: None)
    ahead.wait(5.0)
