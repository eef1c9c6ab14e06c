"""The storage of checkpoints: one interface for a local directory and for the URLs of fsspec."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from paceline.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class Storage(Protocol):
    """Named files. Names are relative, with ``/`` between parts.

    A file appears under its name, complete, when the `with` block of `create` ends. It is then durable, if the storage
    supports that.
    """

    @property
    def url(self) -> str:
        """The address of the storage, for messages."""
        ...

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Write a new file in a `with` block. After an exception in the block there is no file.

        Raises:
            OSError: the storage is full or cannot be reached.
        """
        ...

    def claim(self, name: str, content: bytes) -> bool:
        """Make a file with `content` unless there is one of this name; return whether this call has made it.

        Of several callers at once exactly one gets True. A storage that cannot write conditionally (fsspec then looks
        first and writes afterwards) may give True to two of them; the file then has the content of the last.

        Raises:
            OSError: the storage is full or cannot be reached.
        """
        ...

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        ...

    def folders(self) -> list[str]:
        """Names of the top-level folders, sorted."""
        ...

    def files(self, folder: str) -> list[str]:
        """Names of the files in a folder, relative to it, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Delete one file, if it exists."""
        ...

    def remove(self, folder: str) -> None:
        """Remove a folder with its files, if it exists."""
        ...


_FOLDER_TRIES = 100  # how often a folder is made again that other processes remove while it is empty


class _NewFile(io.FileIO):
    """A new file that bypasses the page cache while its writes are aligned, if the file system supports that.

    A checkpoint is not read soon, and the page cache would take most of the CPU time of a write (440 of 590 ms for
    160 MB), which training needs.
    """

    def __init__(self, path: Path) -> None:
        self._direct = getattr(os, "O_DIRECT", 0)
        try:
            super().__init__(path, "xb", opener=self._open)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = 0
            path.unlink(missing_ok=True)
            super().__init__(path, "xb")

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags | self._direct, 0o666)

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        left = view
        while left.nbytes:
            try:
                left = left[super().write(left) or 0 :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                flags = fcntl.fcntl(self.fileno(), fcntl.F_GETFL)
                fcntl.fcntl(self.fileno(), fcntl.F_SETFL, flags & ~self._direct)
                self._direct = 0
        return view.nbytes


class LocalStorage:
    """A directory of this machine. A file is fsynced before it gets its name, and its directory afterwards."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """As `Storage.url`."""
        return str(self._root)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """As `Storage.create`."""
        path, temporary = self._paths(name)
        try:
            with self._open_new(temporary) as file:
                yield file
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            _remove_if_empty(path.parent)
            raise
        _fsync_directory(path.parent)
        _fsync_directory(path.parent.parent)

    def _paths(self, name: str) -> tuple[Path, Path]:
        """The path of a file, and a temporary one beside it."""
        path = self._root / name
        return path, path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")

    def _open_new(self, path: Path) -> _NewFile:
        """Open a new file; make its folder first.

        Another process whose file of the same folder failed removes the folder while it is empty, so the folder may be
        gone again before the file is in it.
        """
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            _fsync_directory(self._root.parent)
        for _ in range(_FOLDER_TRIES):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return _NewFile(path)
        return _NewFile(path)

    def claim(self, name: str, content: bytes) -> bool:
        """As `Storage.claim`: a link to the complete file, which fails if the name is taken."""
        path, temporary = self._paths(name)
        try:
            with self._open_new(temporary) as file:
                file.write(content)
                os.fsync(file.fileno())
            _link(temporary, path, content)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_directory(path.parent)
        _fsync_directory(path.parent.parent)
        return True

    def read(self, name: str) -> bytes:
        """As `Storage.read`."""
        return (self._root / name).read_bytes()

    def folders(self) -> list[str]:
        """As `Storage.folders`."""
        if not self._root.is_dir():
            return []
        return sorted(p.name for p in self._root.iterdir() if p.is_dir())

    def files(self, folder: str) -> list[str]:
        """As `Storage.files`."""
        path = self._root / folder
        return sorted(p.name for p in path.iterdir() if p.is_file()) if path.is_dir() else []

    def delete(self, name: str) -> None:
        """As `Storage.delete`."""
        path = self._root / name
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            _fsync_directory(path.parent)
            _remove_if_empty(path.parent)

    def remove(self, folder: str) -> None:
        """As `Storage.remove`."""
        shutil.rmtree(self._root / folder, ignore_errors=True)


def _link(temporary: Path, path: Path, content: bytes) -> None:
    """Give a file a name that must not be in use. Without hard links the name appears before its content."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_PACKAGE = re.compile(r'[Ii]nstall (\w+) to |requires "(\w+)" to be installed')
"""How fsspec names the package that a protocol lacks."""


class _FileSystem:
    """A file system of fsspec. Its methods raise `OSError` where the protocol's package has errors of its own."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except OSError:
                raise
            except Exception as error:
                raise OSError(errno.EIO, f"{type(error).__name__}: {error}".splitlines()[0]) from error

        return call


class FsspecStorage:
    """A URL that fsspec supports, such as ``memory://ckpt`` or ``s3://bucket/run`` (with that protocol's package)."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            package = _PACKAGE.search(str(error))
            remedy = f" (pip install {package[1] or package[2]})" if package is not None else ""
            raise UsageError(f"cannot keep checkpoints at {url}: {error}{remedy}") from error
        self._fs: Any = _FileSystem(fs)
        self._url = url

    @property
    def url(self) -> str:
        """As `Storage.url`."""
        return self._url

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """As `Storage.create`: the file is written under a temporary name, and renamed when it is complete."""
        path = f"{self._root}/{name}"
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        temporary = f"{path}.{secrets.token_hex(4)}.part"
        try:
            with self._fs.open(temporary, "wb") as file:
                yield file
            self._fs.mv(temporary, path)
        except BaseException:
            if self._fs.exists(temporary):
                self._fs.rm(temporary)
            raise

    def claim(self, name: str, content: bytes) -> bool:
        """As `Storage.claim`: the mode ``create`` of fsspec, a conditional write where the protocol has one."""
        path = f"{self._root}/{name}"
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """As `Storage.read`."""
        content: bytes = self._fs.cat_file(f"{self._root}/{name}")
        return content

    def folders(self) -> list[str]:
        """As `Storage.folders`."""
        return sorted(_leaf(entry) for entry in self._entries(self._root) if entry["type"] == "directory")

    def files(self, folder: str) -> list[str]:
        """As `Storage.files`."""
        entries = self._entries(f"{self._root}/{folder}")
        return sorted(_leaf(entry) for entry in entries if entry["type"] == "file")

    def _entries(self, path: str) -> list[dict[str, Any]]:
        if not self._fs.exists(path):
            return []
        self._fs.invalidate_cache(path)
        listed: list[dict[str, Any]] = self._fs.ls(path, detail=True)
        return listed

    def delete(self, name: str) -> None:
        """As `Storage.delete`."""
        path = f"{self._root}/{name}"
        if self._fs.exists(path):
            self._fs.rm_file(path)

    def remove(self, folder: str) -> None:
        """As `Storage.remove`."""
        path = f"{self._root}/{folder}"
        if self._fs.exists(path):
            self._fs.rm(path, recursive=True)


def _leaf(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]


def open_storage(where: str | Path) -> Storage:
    """Open a directory or an fsspec URL.

    Raises:
        UsageError: the protocol is unknown, or its package is not installed.
    """
    text = str(where)
    if "://" not in text:
        return LocalStorage(Path(where))
    if text.startswith("file://"):
        return LocalStorage(Path(text.removeprefix("file://")))
    return FsspecStorage(text)
