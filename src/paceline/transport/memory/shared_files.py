"""Memory that processes of one host share: anonymous files, known by descriptors that are handed over, not by names.

Nothing has to be cleaned up, whoever dies and however: the memory goes with the last process that maps it. The
owner seals a segment against shrinking, so that no reader can be ended by a page that is gone, and against new
writable mappings, so that nobody but the owner ever writes to it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import weakref

from paceline.errors import RefusedFrameError

MAX_NBYTES = 1 << 46
"""The largest segment that is mapped for a peer (its size is only its word until then)."""

_F_SEAL_FUTURE_WRITE = 0x0010
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def create(name: str, nbytes: int, *, peers_write: bool = False) -> tuple[int, mmap.mmap]:
    """A new sealed segment of zeros, mapped to be written: its descriptor and its mapping.

    `name` is seen in /proc and nowhere else. With `peers_write` others may map it to be written, too.

    Raises:
        OSError: this system has no such memory, or no more of it.
    """
    fd = os.memfd_create(f"paceline-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        mapped = mmap.mmap(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | (0 if peers_write else _F_SEAL_FUTURE_WRITE))
    except BaseException:
        os.close(fd)
        raise
    return fd, mapped


class Mapping:
    """A peer's segment, mapped read-only; unmapped when the last reference to this object is gone."""

    __slots__ = ("__weakref__", "address", "array", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the segment behind `fd`, which stays the caller's.

        Raises:
            RefusedFrameError: rule ``segment``: it is not a sealed segment of this user and of that size.
            OSError: it cannot be mapped here.
        """
        _check(fd, nbytes)
        address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map a peer's segment: {os.strerror(code)}")
        self.address: int = address
        self.nbytes = nbytes
        self.array = ctypes.c_char * nbytes
        weakref.finalize(self, _libc.munmap, address, nbytes).atexit = False


def map_writable(fd: int, nbytes: int) -> mmap.mmap:
    """Map a segment whose owner lets others write; `fd` stays the caller's.

    Raises:
        RefusedFrameError: as `Mapping`.
        OSError: it cannot be mapped here.
    """
    _check(fd, nbytes)
    return mmap.mmap(fd, nbytes)


def _check(fd: int, nbytes: int) -> None:
    if not 0 < nbytes <= MAX_NBYTES:
        raise RefusedFrameError("segment", f"a segment of {nbytes} bytes")
    about = os.fstat(fd)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise RefusedFrameError("segment", "not a descriptor of anonymous memory") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise RefusedFrameError("segment", "not sealed: its pages could vanish under the reader")
    if about.st_size != nbytes:
        raise RefusedFrameError("segment", f"{about.st_size} bytes, not {nbytes} as announced")
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise RefusedFrameError("segment", "of another user, or open to others")
