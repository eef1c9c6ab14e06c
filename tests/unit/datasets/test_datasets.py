"""Fashion-MNIST is found, fetched and verified; generated classes follow their seed."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import math
import pickle
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from paceline import datasets
from paceline.datasets import debian, download, images, providers
from paceline.datasets.idx_files import FASHION_MNIST, Content, IdxFile, ProviderError, Release, read_files
from paceline.errors import DatasetUnavailableError

Fetch = Callable[[Release, Path], None]


def idx(shape: tuple[int, ...], data: bytes | None = None, *, kind: int = 8) -> bytes:
    header = struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape)
    return header + (bytes(i % 10 for i in range(math.prod(shape))) if data is None else data)


CONTENT = {
    "train-images.gz": idx((6, 28, 28)),
    "train-labels.gz": idx((6,), b"\0\1\2\3\4\5"),
    "test-images.gz": idx((3, 28, 28)),
    "test-labels.gz": idx((3,), b"\7\x08\x09"),
}


def _file(name: str) -> IdxFile:
    raw = CONTENT[name]
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return IdxFile(name, shape, hashlib.sha256(raw).hexdigest())


TINY = Release("tiny", *(_file(name) for name in CONTENT))


def write(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, raw in CONTENT.items():
        (directory / name).write_bytes(gzip.compress(raw, mtime=0))
    return directory


def put(release: Release, into: Path) -> None:
    assert release is TINY
    write(into)


def refuse(release: Release, into: Path) -> None:
    raise ProviderError("the connection is dead")


def load(tmp_path: Path, **options: object) -> tuple[Content, str]:
    settings: dict[str, object] = {
        "root": None,
        "cache": tmp_path / "cache",
        "offline": False,
        "debian": tmp_path / "debian",
        "fetchers": {"first": refuse, "second": put},
    }
    return providers.load(TINY, None, **(settings | options))  # type: ignore[arg-type]


def test_the_content_of_a_file_begins_after_its_header(tmp_path: Path) -> None:
    content = read_files(write(tmp_path), TINY.files(None))
    assert content["train-labels.gz"] == b"\0\1\2\3\4\5"
    assert len(content["train-images.gz"]) == 6 * 28 * 28


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(idx((6,), kind=9), "not an idx file", id="element type"),
        pytest.param(idx((6, 1)), "not an idx file", id="dimensions"),
        pytest.param(idx((7,)), "does not declare the shape", id="shape"),
        pytest.param(idx((6,), b"\0\1\2\3\4"), "fewer bytes", id="short"),
        pytest.param(idx((6,), b"\0\1\2\3\4\5\6"), "more bytes", id="long"),
        pytest.param(idx((6,), b"\0\1\2\3\4\4"), "has SHA-256", id="content"),
        pytest.param(b"", "not an idx file", id="empty"),
    ],
)
def test_a_file_that_is_not_the_published_one_is_refused_by_name(tmp_path: Path, raw: bytes, reason: str) -> None:
    (write(tmp_path) / "train-labels.gz").write_bytes(gzip.compress(raw))
    with pytest.raises(ProviderError, match=rf"train-labels\.gz .*{reason}"):
        read_files(tmp_path, TINY.files("train"))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-12], lambda raw: b"PK" + raw[2:], lambda raw: raw[:20] + raw])
def test_broken_gzip_is_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path) / "train-images.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ProviderError, match=r"train-images\.gz cannot be read"):
        read_files(tmp_path, TINY.files("train"))


def test_only_the_files_of_the_split_are_needed(tmp_path: Path) -> None:
    (write(tmp_path) / "train-images.gz").unlink()
    assert set(read_files(tmp_path, TINY.files("test"))) == {"test-images.gz", "test-labels.gz"}


def test_providers_are_tried_in_order_and_the_one_used_is_named(tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "tiny"
    content, source = load(tmp_path)
    assert source == f"second, kept in {cached}"
    assert load(tmp_path, fetchers={}) == (content, f"cache: {cached}")
    write(tmp_path / "debian")
    assert load(tmp_path)[1] == f"cache: {cached}"
    shutil.rmtree(cached)
    assert load(tmp_path)[1] == f"Debian package's directory: {tmp_path / 'debian'}"
    own = write(tmp_path / "own")
    assert load(tmp_path, root=own)[1] == f"directory: {own}"


def test_a_directory_that_the_user_names_is_used_or_refused_but_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailableError, match=r"train-images\.gz is missing"):
        load(tmp_path, root=tmp_path / "empty")
    assert not (tmp_path / "cache").exists()


def test_the_error_lists_every_provider_its_reason_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailableError) as caught:
        load(tmp_path, fetchers={"first": refuse})
    message = str(caught.value)
    assert f"cache {tmp_path / 'cache' / 'tiny'}: train-images.gz is missing" in message
    assert f"Debian package's directory {tmp_path / 'debian'}: train-images.gz is missing" in message
    assert "first: the connection is dead" in message
    assert "Remedy: put train-images.gz, train-labels.gz, test-images.gz, test-labels.gz into a directory" in message


def test_no_file_is_fetched_offline(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailableError, match="second: not tried: offline"):
        load(tmp_path, offline=True)
    assert not (tmp_path / "cache").exists()


def test_a_fetched_file_of_another_content_never_enters_the_cache(tmp_path: Path) -> None:
    def wrong(release: Release, into: Path) -> None:
        write(into).joinpath("test-labels.gz").write_bytes(gzip.compress(idx((3,), b"\0\0\0")))

    with pytest.raises(DatasetUnavailableError, match=r"wrong: test-labels\.gz has SHA-256"):
        load(tmp_path, fetchers={"wrong": wrong})
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny.lock"]


def test_a_damaged_cache_and_leftovers_of_a_dead_process_are_replaced(tmp_path: Path) -> None:
    cached = write(tmp_path / "cache" / "tiny")
    (cached / "train-images.gz").write_bytes(b"half a fi")
    (tmp_path / "cache" / ".tiny-dead").mkdir()
    assert load(tmp_path)[1].startswith("second")
    assert load(tmp_path, fetchers={})[1] == f"cache: {cached}"
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"tiny", "tiny.lock"}


def test_the_error_names_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(DatasetUnavailableError, match="writing to the cache"):
        load(tmp_path)


def test_threads_that_ask_at_the_same_time_fetch_once(tmp_path: Path) -> None:
    fetched: list[str] = []

    def slow(release: Release, into: Path) -> None:
        fetched.append(threading.current_thread().name)
        time.sleep(0.2)
        write(into)

    sources: list[str] = []
    threads = [
        threading.Thread(target=lambda: sources.append(load(tmp_path, fetchers={"slow": slow})[1])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert sorted(source.split(":")[0].split(",")[0] for source in sources) == [
        "cache",
        "cache",
        "cache",
        "slow",
    ]


@contextlib.contextmanager
def _lock_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import pathlib, sys, time; from paceline.datasets import providers\n"
        "with providers.locked(pathlib.Path(sys.argv[1]), timeout_s=5):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_the_lock_holds_between_processes_and_ends_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "_LOCK_TIMEOUT_S", 0.2)
    with _lock_holder(tmp_path / "cache" / "tiny.lock") as holder:
        with pytest.raises(DatasetUnavailableError, match="another process has held"):
            load(tmp_path)
        holder.kill()
        holder.wait()
        assert load(tmp_path)[1].startswith("second")


def test_a_download_without_an_answer_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(url: str, *, timeout: float) -> object:
        released.wait(10)
        raise OSError("released")

    monkeypatch.setattr("urllib.request.urlopen", hang)
    monkeypatch.setattr(download, "_OPEN_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(ProviderError, match="did not answer within"):
            download.download(TINY, tmp_path)
    finally:
        released.set()


def test_a_download_writes_what_the_server_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, into = write(tmp_path / "origin"), tmp_path / "into"
    into.mkdir()
    monkeypatch.setattr(download, "DOWNLOAD_URL", origin.as_uri())
    monkeypatch.setattr(download, "_open_url", lambda url: (origin / url.rsplit("/", 1)[1]).open("rb"))
    download.download(TINY, into)
    assert read_files(into, TINY.files(None)) == read_files(origin, TINY.files(None))


def test_a_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DOWNLOAD_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(ProviderError, match=r"train-images\.gz: .*No such file"):
        download.download(TINY, tmp_path)


def test_without_apt_the_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(ProviderError, match="apt-get and dpkg-deb not found"):
        debian.fetch_package(TINY, tmp_path)


def test_the_real_package_gives_the_real_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("apt is not on this machine")
    (tmp_path / "work" / "files").mkdir(parents=True)
    try:
        debian.fetch_package(FASHION_MNIST, tmp_path / "work" / "files")
    except ProviderError as error:
        pytest.skip(f"the package is not available here: {error}")
    with caplog.at_level(logging.INFO, logger="paceline.datasets"):
        test = datasets.fashion_mnist(tmp_path / "work" / "files", split="test")
    assert f"fashion-mnist from directory: {tmp_path / 'work' / 'files'}" in caplog.text
    images, labels = test.tensors
    assert images.shape == (10_000, 1, 28, 28)
    assert images.dtype == torch.float32
    assert torch.equal(labels.bincount(), torch.full((10,), 1000))
    assert abs(float(images.mean())) < 0.01


def test_tensors_are_scaled_and_normalised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "FASHION_MNIST", TINY)
    splits = datasets.fashion_mnist(write(tmp_path))
    train, test = splits
    assert splits.source == f"directory: {tmp_path}"
    assert train.tensors[0].shape == (6, 1, 28, 28)
    assert train.tensors[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert test.tensors[1].dtype == torch.int64
    expected = (torch.arange(10, dtype=torch.float32) / 255 - 0.2860) / 0.3530
    assert torch.equal(train.tensors[0].flatten()[:10], expected)
    assert torch.equal(datasets.fashion_mnist(tmp_path, split="test").tensors[0], test.tensors[0])
    assert pickle.loads(pickle.dumps(splits)).source == splits.source


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="'validation'"):
        datasets.fashion_mnist(split="validation")  # type: ignore[call-overload]


def test_generated_classes_have_the_shapes_of_the_real_ones_and_follow_the_seed() -> None:
    train, test = splits = datasets.generated_ten_classes(3, num_train=200, num_test=50)
    assert train.tensors[0].shape == (200, 1, 28, 28)
    assert train.tensors[0].dtype == torch.float32
    assert test.tensors[1].dtype == torch.int64
    assert set(train.tensors[1].tolist()) == set(range(10))
    assert "generated" in splits.source
    again, other = (datasets.generated_ten_classes(seed, num_train=200, num_test=50) for seed in (3, 4))
    assert torch.equal(again[1].tensors[0], test.tensors[0])
    assert not torch.equal(other[1].tensors[0], test.tensors[0])


def test_importing_the_module_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, paceline.datasets; print(sorted({'torch', 'numpy', 'ssl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
