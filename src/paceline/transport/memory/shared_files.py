"""Shared files: anonymous memory of one process that other processes of this host map by a descriptor.

A shared file has no name, so nothing has to be cleaned up: the system frees it when no process maps it any more. The
owner seals it against shrinking, so that no page vanishes while a peer reads it, and against new writable mappings, so
that only the owner writes to it.
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
"""The largest size of a shared file that a peer may announce; this process does not map a larger one."""

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
    """Make a sealed file of zeros; returns its descriptor and a writable mapping.

    `name` is visible in /proc only. With `peers_write`, other processes may also write to the file.

    Raises:
        OSError: this system has no sealed memory files, or no memory or descriptor is free.
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
    """A peer's shared file, mapped read-only. It is unmapped when this object is dropped."""

    __slots__ = ("__weakref__", "address", "array", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the shared file `fd`; the caller still owns and closes the descriptor.

        Raises:
            RefusedFrameError: rule ``shared-file``: `fd` is not a sealed file of this user with `nbytes` bytes.
            OSError: the system cannot map it.
        """
        _check(fd, nbytes)
        address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map a peer's shared file: {os.strerror(code)}")
        self.address: int = address
        self.nbytes = nbytes
        self.array = ctypes.c_char * nbytes
        weakref.finalize(self, _libc.munmap, address, nbytes).atexit = False


def map_writable(fd: int, nbytes: int) -> mmap.mmap:
    """Map a shared file whose owner lets peers write; the caller still owns and closes the descriptor.

    Raises:
        RefusedFrameError: as `Mapping`.
        OSError: the system cannot map it.
    """
    _check(fd, nbytes)
    return mmap.mmap(fd, nbytes)


def _check(fd: int, nbytes: int) -> None:
    if not 0 < nbytes <= MAX_NBYTES:
        raise RefusedFrameError("shared-file", f"a shared file must have 1 to {MAX_NBYTES} bytes, not {nbytes}")
    about = os.fstat(fd)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise RefusedFrameError("shared-file", "the descriptor does not belong to anonymous memory") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise RefusedFrameError("shared-file", "the file is not sealed against shrinking: its pages could vanish")
    if about.st_size != nbytes:
        raise RefusedFrameError("shared-file", f"the file has {about.st_size} bytes, but the peer announced {nbytes}")
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise RefusedFrameError("shared-file", "the file belongs to another user, or other users may open it")
