"""Every source of files keeps its contract: it is a function of position, from any place and in any process."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest
import torch
from tests.kit.sample_files import ROWS, write_all
from tests.kit.web_server import every_fifth, web_server
from torch.utils.data import default_collate

import paceline
from paceline.data.files.places import list_files
from paceline.data.sources.base import FileSource
from paceline.errors import DataUnreachableError

ARGUMENTS: dict[str, dict[str, Any]] = {"images": {"image_size": (6, 5)}}
FORMATS = ["parquet", "arrow", "csv", "jsonl", "tar", "npy", "images", "text", "windows"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = write_all(tmp_path_factory.mktemp("formats"))
    return {**found, "windows": found["text"]}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def _thread() -> None:
    """The one thread of fsspec, which stays for the life of a process."""
    fsspec.asyn.get_loop()


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(cache))


def open_format(name: str, where: Path | str) -> FileSource:
    arguments = {"window": 24, "stride": 20} if name == "windows" else ARGUMENTS.get(name, {})
    return paceline.data.open(where, **arguments)


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str, written: dict[str, Path]) -> FileSource:
    return open_format(name, written[name])


def text(samples: Any) -> list[str]:
    return [str(sample) for sample in samples]


def test_a_sample_follows_from_its_position(source: FileSource, name: str) -> None:
    assert source.length == len(source) > 50
    if name not in ("text", "windows"):
        assert source.length == ROWS
    order = [7, 0, source.length - 1, 40, 7, 39, 41]
    together = text(source.read(order))
    assert together == [text(source.read([position]))[0] for position in order]
    assert len(set(together)) == 6
    every = text(source.read(range(source.length)))
    assert [every[position] for position in order] == together


def test_a_batch_is_what_the_default_collate_makes(source: FileSource, name: str) -> None:
    read_batch = getattr(source, "read_batch", None)
    if read_batch is None:
        assert name in ("npy", "tar", "images", "text", "windows")
        return
    import numpy as np

    order = [3, 90, 17, 3, 64]
    made, collated = read_batch(np.array(order)), default_collate(list(source.read(order)))
    assert made.keys() == collated.keys() == dict(source.columns).keys()
    for column, values in made.items():
        if isinstance(values, torch.Tensor):
            assert values.dtype == collated[column].dtype
            assert torch.equal(values, collated[column])
        else:
            assert values == collated[column]


def test_a_copy_reads_the_same(source: FileSource) -> None:
    source.read([0])
    copy = pickle.loads(pickle.dumps(source))
    assert text(copy.read([5, 2])) == text(source.read([5, 2]))
    assert copy.fingerprint == source.fingerprint
    assert copy.file_digests == source.file_digests


def test_a_changed_file_has_another_digest_and_the_others_have_not(
    source: FileSource, name: str, written: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / written[name].name
    shutil.copytree(written[name], folder)
    victim = sorted(path for path in folder.rglob("*") if path.is_file())[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    files = list_files(folder, ()).digests()
    before = [digest for _, digest in source.file_digests]
    assert [k for k, (_, digest) in enumerate(files) if digest != before[k]] == [1]


def test_a_sample_says_where_it_is(source: FileSource) -> None:
    assert Path(source.files.files[-1].name).name in source.where(source.length - 1)
    assert Path(source.files.files[0].name).name in source.where(0)


def test_from_a_web_server_that_refuses_every_fifth_request(
    source: FileSource, name: str, written: dict[str, Path]
) -> None:
    """Each file is asked for by its address: a web server lists no folders."""
    with web_server(written[name].parent, every_fifth()) as (address, server):
        names = [str(Path(file.name).relative_to(written[name].parent)) for file in source.files.files[:6]]
        urls = [f"{address}/{one}" for one in names]
        remote = open_format(name, urls if len(urls) > 1 else urls[0])  # type: ignore[arg-type]
        count = min(remote.length, source.length)
        order = [count - 1, 0, 2]
        if name == "images":  # the classes of six files are those of all
            assert text(remote.read([0]))[0] == text(source.read([0]))[0]
        else:
            assert text(remote.read(order)) == text(source.read(order))
        assert server.refused >= 1 or server.requests < 5
        remote.files.close()


def test_the_remedy_of_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnreachableError, match=r"nothing\.csv: no such file"):
        paceline.data.open(tmp_path / "nothing.csv")
