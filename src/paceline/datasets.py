"""Data sets for the examples and the demo, found without asking the user to fetch anything.

`fashion_mnist` tries, in this order: the directory that the caller names; the cache; the directory of the
Debian package `dataset-fashion-mnist`; a download over https; and the Debian package itself, fetched with a
private apt state (neither root nor an earlier `apt-get update` is needed). Whatever the source, every file is
checked against a SHA-256 of its decoded content before an image is used; what was fetched stays in the cache.

Nothing heavy is imported until a data set is asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import logging
import math
import os
import queue
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from paceline.config.load import cache_dir
from paceline.errors import DatasetUnavailableError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from torch import Tensor
    from torch.utils.data import TensorDataset

__all__ = ["Splits", "fashion_mnist", "generated_ten_classes"]

logger = logging.getLogger(__name__)

Split = Literal["train", "test"]

GENERATED = "generated:"
"""As `root`: ten made-up classes instead of the real ones."""

NUM_CLASSES = 10
SIDE = 28

_DEBIAN_PACKAGE = "dataset-fashion-mnist"
_DEBIAN_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
_DOWNLOAD_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"

_OPEN_TIMEOUT_S = 4.0
_READ_TIMEOUT_S = 10.0
_DOWNLOAD_TIMEOUT_S = 300.0
_APT_TIMEOUT_S = 120.0
_LOCK_TIMEOUT_S = 600.0

# The mean and the standard deviation of the training pixels, after scaling to [0, 1].
_MEAN, _STD = 0.2860, 0.3530
# Enough that no single pixel gives a class away: LeNet ends its first epoch near 98 %, not at 100 %.
_GENERATED_NOISE = 2.0


class Splits(tuple["TensorDataset", "TensorDataset"]):
    """The pair (train, test), which also knows where it came from.

    Attributes:
        source: one line for people, such as ``cache: /home/me/.cache/paceline/fashion-mnist``.
    """

    source: str

    def __new__(cls, train: TensorDataset, test: TensorDataset, source: str) -> Splits:  # noqa: D102
        pair = super().__new__(cls, (train, test))
        pair.source = source
        return pair

    def __getnewargs__(self) -> tuple[TensorDataset, TensorDataset, str]:
        return (*self, self.source)


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One gzipped idx file: its name, the shape it must declare and the SHA-256 of its decoded content.

    The decoded content is what is hashed because the same data is published under different gzip headers.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Release:
    """The four files of one published data set in the layout of MNIST."""

    name: str
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile

    def files(self, split: Split | None) -> tuple[IdxFile, ...]:
        """The files of one split, or all four."""
        train = (self.train_images, self.train_labels)
        test = (self.test_images, self.test_labels)
        return {"train": train, "test": test, None: train + test}[split]


FASHION_MNIST = Release(
    name="fashion-mnist",
    train_images=IdxFile(
        "train-images-idx3-ubyte.gz",
        (60_000, SIDE, SIDE),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    train_labels=IdxFile(
        "train-labels-idx1-ubyte.gz",
        (60_000,),
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    test_images=IdxFile(
        "t10k-images-idx3-ubyte.gz",
        (10_000, SIDE, SIDE),
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    test_labels=IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        (10_000,),
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


class SourceError(Exception):
    """One source cannot provide the data; the message says why. The next source is tried."""


# What a source hands over: the decoded, verified content of each file, without its idx header.
Content = Mapping[str, bytes]


@overload
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Splits: ...
@overload
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: Split,
    cache: str | Path | None = None,
    offline: bool = False,
) -> TensorDataset: ...
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: Split | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Splits | TensorDataset:
    """Return Fashion-MNIST, training set and test set, as tensors in memory.

    Images are float32 of shape (1, 28, 28), scaled to [0, 1] and then normalised by the mean and deviation of
    the training set; labels are int64. The same numbers are returned whichever source was used; an INFO log
    line and the pair's `source` name it. Any number of processes may call this at once: one fetches, the
    others wait for it and read the cache.

    Args:
        root: a directory with the four ``*-ubyte.gz`` files; when it is given, no other source is tried.
        split: ``"train"`` or ``"test"`` for one data set, None for the pair.
            ``"generated:"`` gives `generated_ten_classes` instead.
        cache: where fetched files are kept, in a directory of their own; by default $PACELINE_CACHE, or
            ~/.cache/paceline.
        offline: use only what is on this machine already.

    Raises:
        DatasetUnavailableError: no source worked; the message lists each with its reason, and the remedy.
    """
    if split not in ("train", "test", None):
        raise ValueError(f"split must be 'train', 'test' or None, not {split!r}")
    if root == GENERATED:
        pair = generated_ten_classes()
        return pair if split is None else pair[split == "test"]
    release = FASHION_MNIST
    kept = cache_dir() if cache is None else Path(cache)
    content, source = load(release, split, root=None if root is None else Path(root), cache=kept, offline=offline)
    logger.info("%s from %s", release.name, source)
    made: dict[Split, TensorDataset] = {}
    if split != "test":
        made["train"] = _tensors(content, release.train_images, release.train_labels)
    if split != "train":
        made["test"] = _tensors(content, release.test_images, release.test_labels)
    return made[split] if split else Splits(made["train"], made["test"], source)


def generated_ten_classes(seed: int = 0, *, num_train: int = 60_000, num_test: int = 10_000) -> Splits:
    """Return a made-up ten-class data set with the shapes and types of Fashion-MNIST.

    Each class is a smooth random picture; a sample is its class picture shifted by up to three pixels, with a
    random contrast and heavy noise. A small convolutional network passes 88 % within an epoch, which says
    nothing about any real task. The same seed gives the same data.
    """
    import torch
    from torch.nn.functional import interpolate
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(NUM_CLASSES, 1, 7, 7, generator=generator)
    pictures = interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    offsets = [(down, right) for down in range(-3, 4) for right in range(-3, 4)]
    shifted = torch.stack([pictures.roll(offset, dims=(2, 3)) for offset in offsets], dim=1)

    def draw(count: int) -> TensorDataset:
        labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
        where = torch.randint(len(offsets), (count,), generator=generator)
        contrast = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
        images = torch.randn(count, 1, SIDE, SIDE, generator=generator)
        images.mul_(_GENERATED_NOISE).add_(shifted[labels, where].mul_(contrast))
        return TensorDataset(images, labels)

    return Splits(draw(num_train), draw(num_test), f"generated: ten made-up classes, seed {seed}")


def load(
    release: Release,
    split: Split | None,
    *,
    root: Path | None,
    cache: Path,
    offline: bool,
    debian: Path = _DEBIAN_DIRECTORY,
    fetchers: Mapping[str, Callable[[Release, Path], None]] | None = None,
) -> tuple[Content, str]:
    """Return the verified content of a split's files and a line that names the source.

    `fetchers` maps a description to a function that puts the four files into an empty directory or raises
    `SourceError`; they are tried in order, and only while no other process fetches the same release.
    """
    wanted = release.files(split)
    if root is not None:
        try:
            return read_files(root, wanted), f"directory: {root}"
        except SourceError as error:
            raise _unavailable(release, {f"directory {root}": str(error)}) from None

    tried: dict[str, str] = {}
    try:
        home = cache.expanduser() / release.name
    except RuntimeError as error:
        raise _unavailable(release, {f"cache {cache}": f"{error}; pass cache= a directory"}) from None
    for label, directory in (("cache", home), ("Debian package's directory", debian)):
        try:
            return read_files(directory, wanted), f"{label}: {directory}"
        except SourceError as error:
            tried[f"{label} {directory}"] = str(error)

    if fetchers is None:
        fetchers = {f"download from {_DOWNLOAD_URL}": _download, f"apt-get download {_DEBIAN_PACKAGE}": _apt}
    if offline:
        tried.update(dict.fromkeys(fetchers, "not tried: offline"))
        raise _unavailable(release, tried)
    try:
        with _locked(home.with_suffix(".lock"), timeout_s=_LOCK_TIMEOUT_S):
            with contextlib.suppress(SourceError):  # another process may have filled it meanwhile
                return read_files(home, wanted), f"cache: {home}"
            for label, fetch in fetchers.items():
                try:
                    content = _fetch_into(home, release, fetch)
                except SourceError as error:
                    tried[label] = str(error)
                else:
                    return content, f"{label}, kept in {home}"
    except OSError as error:
        tried[f"writing to the cache {home}"] = str(error)
    raise _unavailable(release, tried)


def read_files(directory: Path, files: tuple[IdxFile, ...]) -> Content:
    """Decode and verify `files`; the result maps each name to its bytes after the idx header.

    Raises:
        SourceError: a file is missing, unreadable, not what its idx header must say, or of another content.
    """
    return {file.name: _read_idx(directory / file.name, file) for file in files}


def _read_idx(path: Path, file: IdxFile) -> bytes:
    try:
        # A gzip bomb ends here: no more than one byte beyond the right size is ever decoded.
        header = struct.pack(f">HBB{len(file.shape)}I", 0, 0x08, len(file.shape), *file.shape)
        size = len(header) + math.prod(file.shape)
        with gzip.open(path) as stream:
            raw = stream.read(size + 1)
    except FileNotFoundError:
        raise SourceError(f"{path.name} is not there") from None
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path.name} cannot be read: {error}") from None
    if raw[:4] != header[:4]:
        raise SourceError(f"{path.name} is not an idx file of {len(file.shape)} dimensions of bytes")
    if raw[: len(header)] != header:
        raise SourceError(f"{path.name} does not declare the shape {file.shape}")
    if len(raw) != size:
        more = "more" if len(raw) > size else "fewer"
        raise SourceError(f"{path.name} holds {more} bytes than its shape {file.shape} needs")
    digest = hashlib.sha256(raw).hexdigest()
    if digest != file.sha256:
        raise SourceError(f"{path.name} has SHA-256 {digest} where {file.sha256} is right")
    return raw[len(header) :]


def _tensors(content: Content, images: IdxFile, labels: IdxFile) -> TensorDataset:
    import torch
    from torch.utils.data import TensorDataset

    def decode(file: IdxFile, dtype: torch.dtype) -> Tensor:
        # A bytearray, since torch warns about memory that it must not write to; `to` makes the copy to keep.
        flat = torch.frombuffer(bytearray(content[file.name]), dtype=torch.uint8)
        return flat.to(dtype).view(file.shape)

    pixels = decode(images, torch.float32).unsqueeze_(1)
    return TensorDataset(pixels.div_(255).sub_(_MEAN).div_(_STD), decode(labels, torch.int64))


def _unavailable(release: Release, tried: Mapping[str, str]) -> DatasetUnavailableError:
    reasons = "\n".join(f"  - {label}: {reason}" for label, reason in tried.items())
    names = ", ".join(file.name for file in release.files(None))
    return DatasetUnavailableError(
        f"{release.name} could not be had from any source:\n{reasons}\n"
        f"Remedy: put {names} into a directory and pass it as the first argument."
    )


@contextlib.contextmanager
def _locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock among processes and threads; it ends with its holder, however that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("a") as handle:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has held {path} for {timeout_s:.0f} s") from None
            if not told:
                logger.info("another process is fetching the data; waiting for %s", path)
                told = True
            time.sleep(0.05)
        yield


def _fetch_into(home: Path, release: Release, fetch: Callable[[Release, Path], None]) -> Content:
    """Fetch into a fresh directory, verify it whole, and only then give it its name. The lock is held."""
    prefix = f".{release.name}-"
    for leftover in home.parent.glob(f"{prefix}*"):  # of a process that died here
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=prefix) as scratch:
        fresh = Path(scratch, "files")
        fresh.mkdir()
        fetch(release, fresh)
        content = read_files(fresh, release.files(None))
        if home.exists():
            home.rename(Path(scratch, "replaced"))
        fresh.rename(home)
    return content


def _download(release: Release, into: Path) -> None:
    from http.client import HTTPException

    deadline = time.monotonic() + _DOWNLOAD_TIMEOUT_S
    for file in release.files(None):
        limit = math.prod(file.shape) + 65_536  # gzip never makes it larger than that
        try:
            with _open_url(f"{_DOWNLOAD_URL}/{file.name}") as response, (into / file.name).open("wb") as out:
                while chunk := response.read1(1 << 20):
                    out.write(chunk)
                    if out.tell() > limit:
                        raise SourceError(f"{file.name} is larger than it can be")
                    if time.monotonic() > deadline:
                        raise SourceError(f"not finished within {_DOWNLOAD_TIMEOUT_S:.0f} s")
        except (OSError, HTTPException) as error:
            raise SourceError(f"{file.name}: {error}") from None


def _open_url(url: str) -> HTTPResponse:
    """Open `url` within `_OPEN_TIMEOUT_S` in all.

    A socket's time-out covers neither the name look-up nor the number of addresses tried, so the opening
    happens in a thread of its own, which is left behind if it is late.
    """
    import urllib.request  # brings ssl and http, which a cached data set does not need

    opened: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()
    late = threading.Event()

    def work() -> None:
        try:
            response: HTTPResponse = urllib.request.urlopen(url, timeout=_READ_TIMEOUT_S)
        except Exception as error:  # handed to the caller, who raises it
            opened.put(error)
            return
        opened.put(response)
        if late.is_set():
            response.close()

    threading.Thread(target=work, name="paceline-download", daemon=True).start()
    try:
        result = opened.get(timeout=_OPEN_TIMEOUT_S)
    except queue.Empty:
        late.set()
        raise SourceError(f"no answer within {_OPEN_TIMEOUT_S:.0f} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def _apt(release: Release, into: Path) -> None:
    """Fetch the Debian package with an apt state of its own; the system's is neither needed nor touched."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise SourceError(f"{' and '.join(missing)} not found")
    work = into.parent / "apt"
    for part in ("state/lists/partial", "cache/archives/partial", "unpacked"):
        (work / part).mkdir(parents=True)
    (work / "status").touch()
    (work / "apt.conf").write_text(
        f'Dir::State "{work}/state";\n'
        f'Dir::State::lists "{work}/state/lists";\n'
        f'Dir::State::status "{work}/status";\n'
        f'Dir::Cache "{work}/cache";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "0";\n'
        'Acquire::http::Timeout "10";\n'
        'Acquire::https::Timeout "10";\n'
        # Root's apt would hand the transfer to a user who cannot enter this private directory.
        'APT::Sandbox::User "root";\n'
        # The system's hooks tidy up the system's own state, which is not ours to touch.
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
    )
    logger.info("fetching the Debian package %s", _DEBIAN_PACKAGE)
    apt = ["apt-get", "-q", "-c", str(work / "apt.conf")]
    # A single unreachable archive fails the update but not necessarily the download: that one decides.
    update = _run([*apt, "update"], work, check=False)
    try:
        _run([*apt, "download", _DEBIAN_PACKAGE], work)
        (package,) = work.glob("*.deb")
    except (SourceError, ValueError) as error:
        raise SourceError(f"{error}; the update before said: {update}") from None
    _run(["dpkg-deb", "-x", str(package), "unpacked"], work)
    unpacked = work / "unpacked" / _DEBIAN_DIRECTORY.relative_to("/")
    for file in release.files(None):
        try:
            os.replace(unpacked / file.name, into / file.name)
        except OSError as error:
            raise SourceError(f"the package has no usable {file.name}: {error}") from None


def _run(command: list[str], cwd: Path, *, check: bool = True) -> str:
    """Run a command to its end and return the last line it said."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{command[0]} did not end within {_APT_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SourceError(f"{command[0]} could not be started: {error}") from None
    lines = done.stdout.strip().splitlines()
    last = lines[-1] if lines else "nothing"
    if check and done.returncode != 0:
        raise SourceError(f"{command[0]} ended with {done.returncode}: {last}")
    return last
