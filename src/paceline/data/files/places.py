"""The files behind an address: listed, named without secrets, and read by ranges of bytes."""

from __future__ import annotations

import fnmatch
import glob
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from paceline.data.files.cache import BLOCK, BlockCache, ReadAhead
from paceline.data.files.retries import with_retries
from paceline.errors import DataChangedError, DataError, DataUnreachableError, UsageError

_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http", "gs": "gcs", "gcs": "gcs", "hdfs": "data"}
_TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "checksum", "crc32c", "Last-Modified", "LastModified", "mtime")
_END = 1 << 16  # this many bytes at a place of a file count for its digest
_WHOLE = 64 << 20  # files that have at most this many bytes together are read whole for their digests
_PLACES = 16


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file. `name` is for people, logs and fingerprints; `path` may contain secrets and is shown to nobody.

    `tag` is what the storage says of the content, "" for a file of this machine.
    """

    path: str = field(repr=False)
    name: str
    size: int
    tag: str = ""
    changed_ns: int = 0


def shown(url: str) -> str:
    """`url` without user, password, query and fragment, which may hold credentials."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Files:
    """The files of one source. Any process may read them; a copy in a forked process connects by itself."""

    def __init__(
        self,
        files: Sequence[DataFile],
        protocol: str = "",
        options: Mapping[str, Any] | None = None,
        cache: BlockCache | None = None,
    ) -> None:
        self.files = tuple(files)
        self._protocol, self._options, self.cache = protocol, dict(options or {}), cache
        self._fs: Any = None
        self._pid = 0
        self._ahead = ReadAhead()

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"Files({[file.name for file in self.files[:3]]}, {len(self.files)} in all)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fs": None, "_pid": 0, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ahead = ReadAhead()

    @property
    def is_local(self) -> bool:
        """Whether the files are on a file system of this machine."""
        return not self._protocol

    def read(self, number: int, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes from `start` to before `stop` of file `number`. May block.

        Raises:
            DataUnreachableError: the file cannot be reached.
            DataChangedError: the file is not what it was when it was listed.
        """
        file = self.files[number]
        stop = file.size if stop is None else min(stop, file.size)
        if stop <= start:
            return b""
        if self.is_local:
            with self.opened(number) as opened:
                opened.seek(start)
                return opened.read(stop - start)
        parts = []
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            content = self._block(number, block)
            begin = block * BLOCK
            parts.append(content[max(0, start - begin) : stop - begin])
        self._read_ahead(number, -(-stop // BLOCK))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def path(self, number: int) -> Path | None:
        """The path of file `number`, None if it is not on this machine."""
        return Path(self.files[number].path) if self.is_local else None

    @contextmanager
    def opened(self, number: int) -> Iterator[io.BufferedIOBase]:
        """File `number`, open for reading and seeking."""
        file = self.files[number]
        if not self.is_local:
            with io.BufferedReader(_Ranges(self, number), 1 << 16) as remote:
                yield remote
            return
        opened = with_retries(file.name, lambda: open(file.path, "rb"))  # noqa: SIM115
        with opened:
            self.check_unchanged(number, os.fstat(opened.fileno()))
            yield opened

    def raw(self, number: int) -> io.RawIOBase:
        """A remote file that stays open for reading and seeking: it holds no connection."""
        return _Ranges(self, number)

    def check_unchanged(self, number: int, state: os.stat_result) -> None:
        """Check that a file of this machine is what it was when it was listed.

        Raises:
            DataChangedError: it is not.
        """
        file = self.files[number]
        if (state.st_size, state.st_mtime_ns) != (file.size, file.changed_ns):
            raise _changed(file.name)

    def _block(self, number: int, block: int) -> bytes:
        file = self.files[number]
        start = block * BLOCK
        nbytes = min(BLOCK, file.size - start)

        def fetch() -> bytes:
            return with_retries(file.name, lambda: self._fetch(file, start, nbytes))

        if self.cache is None:
            return fetch()
        key = blake2b(f"{file.name}\0{file.size}\0{file.tag}".encode(), digest_size=16).hexdigest()
        return self.cache.read(key, block, nbytes, fetch)

    def _fetch(self, file: DataFile, start: int, nbytes: int) -> bytes:
        content: bytes = self.fs().cat_file(file.path, start=start, end=start + nbytes)
        if len(content) == file.size != nbytes:  # a server without ranges sends the whole file
            content = content[start : start + nbytes]
        if len(content) != nbytes:
            raise EOFError(f"{len(content)} bytes instead of {nbytes}")
        return content

    def _read_ahead(self, number: int, block: int) -> None:
        file, cache = self.files[number], self.cache
        if cache is None or block * BLOCK >= file.size:
            return
        key = blake2b(f"{file.name}\0{file.size}\0{file.tag}".encode(), digest_size=16).hexdigest()
        if not cache.has(key, block):
            self._ahead.start(lambda: self._block(number, block))

    def close(self) -> None:
        """Wait until what is read ahead has come."""
        self._ahead.wait(10.0)

    def fs(self) -> Any:
        """The file system of fsspec, connected in this process."""
        if self._pid != os.getpid():
            self._fs, self._pid = connect(self._protocol, self._options), os.getpid()
        return self._fs

    # ------------------------------------------------------------ what identifies the content

    def digests(self) -> tuple[tuple[str, str], ...]:
        """(name, digest) of each file. Small files count with every byte, large ones with some places, and the size.

        A file on a storage that names contents itself counts by that.
        """
        whole = sum(file.size for file in self.files) <= _WHOLE
        places = _PLACES if len(self.files) <= 64 else 2
        return tuple((file.name, self._digest(number, whole, places)) for number, file in enumerate(self.files))

    def _digest(self, number: int, whole: bool, places: int) -> str:
        file = self.files[number]
        out = blake2b(f"{file.size}".encode(), digest_size=8)
        if file.tag:
            out.update(file.tag.encode())
        elif whole or file.size <= places * _END:
            for start in range(0, file.size, 1 << 22):
                out.update(self.read(number, start, start + (1 << 22)))
        else:
            for k in range(places):
                start = k * (file.size - _END) // (places - 1)
                out.update(self.read(number, start, start + _END))
        return out.hexdigest()

    def verify(self, checksums: Mapping[str, str]) -> None:
        """Check the SHA-256 of files, given by name or by the last part of the name.

        Raises:
            DataError: a file has another one, or there is no such file.
        """
        known = {file.name: n for n, file in enumerate(self.files)}
        known |= {file.name.rsplit("/", 1)[-1]: n for n, file in enumerate(self.files)}
        for name, wanted in checksums.items():
            if name not in known:
                raise UsageError(f"checksums= names {name}, which is none of the files: {', '.join(sorted(known))}")
            out, number = sha256(), known[name]
            for start in range(0, self.files[number].size, BLOCK):
                out.update(self.read(number, start, start + BLOCK))
            if out.hexdigest() != wanted.removeprefix("sha256:").lower():
                raise DataError(
                    f"{self.files[number].name} has the SHA-256 {out.hexdigest()} instead of {wanted}: fetch it again, "
                    "or correct checksums="
                )


class _Ranges(io.RawIOBase):
    """A remote file that is read by ranges."""

    def __init__(self, files: Files, number: int) -> None:
        self._files, self._number, self._at = files, number, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._files.files[self._number].size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._files.read(self._number, self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _changed(name: str) -> DataChangedError:
    return DataChangedError(
        f"{name} has changed while the job reads it: put it back, or start the job again. "
        "A job reads files that do not change"
    )


def connect(protocol: str, options: Mapping[str, Any]) -> Any:
    """The file system of fsspec for `protocol`.

    Raises:
        UsageError: the protocol is unknown, or its package is not installed.
    """
    import fsspec

    try:
        return fsspec.filesystem(protocol, **options)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'paceline[{extra}]'" if extra else "install the package that the message names"
        raise UsageError(f"cannot read {protocol}://: {error}; {remedy}") from None


def list_files(
    urls: str | Path | Sequence[str | Path],
    suffixes: Sequence[str],
    options: Mapping[str, Any] | None = None,
    cache: BlockCache | None = None,
) -> Files:
    """The files of one or several addresses: a file, a folder (its files with one of `suffixes`, deeply), or a pattern.

    Files of a pattern or folder are sorted by name; names that begin with a dot or underscore are left out.

    Raises:
        DataUnreachableError: there is no such file.
    """
    given = [str(url) for url in ([urls] if isinstance(urls, str | Path) else urls)]
    protocols = {url.split("://", 1)[0] if "://" in url else "file" for url in given}
    if len(protocols) != 1:
        raise UsageError(f"the addresses must have one scheme, not {', '.join(sorted(protocols)) or 'none'}")
    protocol = protocols.pop()
    if protocol in ("file", "local"):
        paths = [path for url in given for path in _local(re.sub(r"^(file|local)://", "", url), suffixes)]
        return Files([_stat(path) for path in paths])
    fs = connect(protocol, options or {})
    found: list[DataFile] = []
    for url in given:
        found += with_retries(shown(url), lambda url=url: _remote(fs, protocol, url, suffixes))  # type: ignore[misc]
    return Files(found, protocol, options, cache)


def _stat(path: str) -> DataFile:
    state = with_retries(path, lambda: os.stat(path))
    return DataFile(os.path.abspath(path), path, state.st_size, "", state.st_mtime_ns)


def _is_data(name: str, suffixes: Sequence[str]) -> bool:
    return name.lower().endswith(tuple(suffixes)) if suffixes else True


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _fixed(pattern: str) -> str:
    """The folder in which a pattern looks for files."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]


def _local(path: str, suffixes: Sequence[str]) -> list[str]:
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        found = []
        for folder, folders, names in os.walk(path, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            found += [os.path.join(folder, n) for n in names if _is_data(n, suffixes) and not _hidden(n)]
    elif os.path.exists(path):
        found = [path]
    else:
        root = _fixed(path)
        found = [name for name in glob.glob(path, recursive=True) if os.path.isfile(name)]
        found = [name for name in found if not _hidden(name[len(root) :])]
    return _some(sorted(found), path, suffixes)


def _some(found: list[Any], url: str, suffixes: Sequence[str]) -> list[Any]:
    if not found:
        kinds = f" with a name that ends in {' or '.join(suffixes)}" if suffixes else ""
        raise DataUnreachableError(
            f"{url}: no such file{kinds}. Check the address, and that every host of the run sees it"
        )
    return found


def _remote(fs: Any, protocol: str, url: str, suffixes: Sequence[str]) -> list[DataFile]:
    path = fs._strip_protocol(url)
    if glob.has_magic(path.split("?", 1)[0] if protocol.startswith("http") else path):
        root = _fixed(path)
        infos = list(fs.glob(path, detail=True).values())
    elif protocol.startswith("http"):
        return [_entry(protocol, fs.info(path), path)]
    else:
        info = fs.info(path)
        if info["type"] != "directory":
            return [_entry(protocol, info, path)]
        root = path.rstrip("/")
        infos = list(fs.find(path, detail=True).values())
    kept = [info for info in infos if info["type"] == "file" and not _hidden(info["name"][len(root) :].strip("/"))]
    if not fnmatch.fnmatch(path, "*.*") or not glob.has_magic(path):
        kept = [info for info in kept if _is_data(info["name"], suffixes)]
    entries = [_entry(protocol, info, info["name"]) for info in kept]
    return _some(sorted(entries, key=lambda file: file.name), shown(url), ())


def _entry(protocol: str, info: Mapping[str, Any], path: str) -> DataFile:
    name = shown(path if "://" in path else f"{protocol}://{path.lstrip('/')}")
    if info.get("size") is None:
        raise DataError(f"{name}: the server does not tell the size of this file. Copy it to a disk")
    tag = next((f"{key} {info[key]}" for key in _TAGS if info.get(key)), "")
    return DataFile(path, name, int(info["size"]), tag)
