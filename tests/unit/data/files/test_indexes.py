from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.data.files import indexes
from paceline.data.files.indexes import Progress, index_of
from paceline.data.files.places import Files, list_files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "a.csv").write_text("x\n1\n")
    return list_files(tmp_path / "a.csv", ())


def columns() -> dict[str, Any]:
    return {"a": np.arange(5), "b": np.ones(3)}


def test_of_several_that_need_an_index_one_makes_it(files: Files, tmp_path: Path) -> None:
    made = []
    gate = threading.Event()

    def build(said: Progress) -> dict[str, Any]:
        made.append(1)
        gate.wait(0.2)
        return columns()

    def use() -> None:
        found = index_of(files, "kind", build, tmp_path / "indexes")
        assert found["a"].tolist() == list(range(5))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_an_index_is_of_its_files_and_arguments(files: Files, tmp_path: Path) -> None:
    made: list[str] = []

    def use(kind: str, of: Files) -> None:
        def build(said: Progress) -> dict[str, Any]:
            made.append(kind)
            return columns()

        index_of(of, kind, build, tmp_path / "indexes")

    use("one", files)
    use("one", files)
    use("two", files)
    (tmp_path / "a.csv").write_text("x\n2\n3\n")
    use("one", list_files(tmp_path / "a.csv", ()))
    assert made == ["one", "two", "one"]


def test_a_process_that_dies_leaves_no_index(files: Files, tmp_path: Path) -> None:
    def dies(said: Progress) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_of(files, "kind", dies, tmp_path / "indexes")
    assert list((tmp_path / "indexes").glob("*/")) == []
    assert index_of(files, "kind", lambda said: columns(), tmp_path / "indexes")["b"].tolist() == [1, 1, 1]


def test_a_damaged_index_is_made_again(files: Files, tmp_path: Path) -> None:
    root = tmp_path / "indexes"
    index_of(files, "kind", lambda said: columns(), root)
    (damaged,) = root.glob("*/a.npy")
    damaged.write_bytes(b"x")
    assert index_of(files, "kind", lambda said: columns(), root)["a"].tolist() == list(range(5))


def test_without_room_the_index_stays_in_memory(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(home: Path, made: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(indexes, "_store", full)
    assert index_of(files, "kind", lambda said: columns(), tmp_path / "indexes")["a"].tolist() == list(range(5))
    assert "cannot be kept" in caplog.text
