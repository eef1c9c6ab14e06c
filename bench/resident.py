"""Memory, shared memory and open files of the processes of a run, as Linux counts them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

PROC = Path("/proc")
SEGMENTS = ("/memfd:", "/dev/shm/")


def _kilobytes(path: Path, wanted: tuple[str, ...]) -> dict[str, int]:
    """Lines of the form "Name:  123 kB", in bytes."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in wanted:
            found[name] = int(value.split()[0]) * 1024
    return found


def resident(pid: int) -> dict[str, float]:
    """Resident bytes of a process, counted in three ways.

    All three count private and file pages in full, including libraries. They differ in shared memory. `own` counts the
    segments that the process created: only it maps them writable, readers map them read-only, so each page counts in
    one process. `pss` divides a page among the processes that map it. `rss` counts it in full in each of them.

    Raises:
        OSError: the process has ended.
    """
    status = _kilobytes(PROC / str(pid) / "status", ("RssAnon", "RssFile", "RssShmem"))
    if not status:
        raise ProcessLookupError(pid)
    private = status["RssAnon"] + status["RssFile"]
    made, share = shared((PROC / str(pid) / "smaps").read_text())
    return {"own": private + made, "pss": private + share, "rss": private + status["RssShmem"]}


def shared(smaps: str) -> tuple[int, int]:
    """Shared memory in the `smaps` of a process: resident bytes of writable mappings, and its share of all (Pss)."""
    made = share = 0
    counts = writable = False
    for line in smaps.splitlines():
        words = line.split(None, 5)
        if not words[0].endswith(":"):
            counts = len(words) > 5 and words[5].startswith(SEGMENTS)
            writable = words[1].startswith("rw")
        elif counts and words[0] == "Rss:" and writable:
            made += int(words[1]) * 1024
        elif counts and words[0] == "Pss:":
            share += int(words[1]) * 1024
    return made, share


def num_fds(pid: int) -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(PROC / str(pid) / "fd"))


def segments(pids: list[int]) -> int:
    """Bytes of shared memory that these processes hold open, each segment once."""
    found: dict[int, int] = {}
    for pid in pids:
        folder = PROC / str(pid) / "fd"
        for fd in os.listdir(folder):
            try:
                if os.readlink(folder / fd).startswith(SEGMENTS):
                    about = os.stat(folder / fd)
                    found[about.st_ino] = about.st_blocks * 512
            except OSError:
                continue  # closed since it was listed
    return sum(found.values())


def roles(launcher: int) -> dict[str, int]:
    """The process ids of a run's roles by name."""
    found = {}
    for child in psutil.Process(launcher).children():
        try:
            words = child.cmdline()
            found[words[words.index("paceline.runtime.role_process") + 2]] = child.pid
        except (psutil.Error, ValueError, IndexError):
            continue  # between fork and exec, or it has just ended
    return found
