"""Hygiene for every test: what a test starts, it ends.

After each test, nothing may be left of: Python threads, processes (children, and orphans of children),
shared memory named paceline*, listening sockets, and changes to the environment. What is still going away
gets a short grace; what stays fails the test by name. Processes are then killed and the environment put back,
so that the next test starts clean. What a fixture of wider scope holds is not held against a test, because it
exists before the test's check begins.

Also here: what tests of several rooms need.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

GRACE_S = 2.0
SHM = Path("/dev/shm")
FD = Path("/proc/self/fd")

# Every process started from here inherits this, so that an orphan is known even after its parent is gone.
MARK = "PYTEST_STARTED_BY"
os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"

# pytest writes the one, and torch and its libraries the others when they are first used.
ENVIRONMENT_OF_OTHERS = ("PYTEST_", "KMP_", "OMP_", "TORCHINDUCTOR_", "TRITON_")
# Lives as long as its context, by design: it owns the buffers of zero-copy sends.
THREADS_OF_OTHERS = ("GarbageCollectorThread",)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What exists at one moment. `pids` are all of the machine's: only new ones are asked whose they are."""

    threads: frozenset[threading.Thread]
    pids: frozenset[int]
    segments: frozenset[str]
    listeners: frozenset[tuple[int, int]]
    environment: dict[str, str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            threads=frozenset(threading.enumerate()),
            pids=frozenset(psutil.pids()),
            segments=frozenset(name for name in _names(SHM) if name.startswith("paceline")),
            listeners=frozenset(_listeners()),
            environment=dict(os.environ),
        )


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _listeners() -> Iterator[tuple[int, int]]:
    for name in _names(FD):
        fd = int(name)
        try:
            info = os.fstat(fd)
            if not stat.S_ISSOCK(info.st_mode):
                continue
            copy = socket.socket(fileno=os.dup(fd))
        except OSError:  # closed since it was listed
            continue
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield fd, info.st_ino


def _is_ours(process: psutil.Process) -> bool:
    try:
        is_child: bool = process.ppid() == os.getpid()
        if is_child or process.status() == psutil.STATUS_ZOMBIE:  # a dead orphan is for init to collect
            return is_child
        has_mark: bool = process.environ().get(MARK) == os.environ[MARK]
    except psutil.Error:
        return False
    return has_mark


def _new_processes(before: Snapshot) -> list[psutil.Process]:
    # multiprocessing starts one helper on first use and keeps it to the end.
    kept = {getattr(resource_tracker._resource_tracker, "_pid", None)}
    found = []
    for pid in set(psutil.pids()) - before.pids - kept:
        try:
            process = psutil.Process(pid)
        except psutil.Error:
            continue
        if _is_ours(process):
            found.append(process)
    return found


def _used_elsewhere(segment: str) -> bool:
    """Whether a live process that this test did not start uses the segment: then it is another run's."""
    path = str(SHM / segment)
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or _is_ours(process):
                continue
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            fds = Path(f"/proc/{process.pid}/fd")
            if path in maps or any(os.readlink(fds / fd) == path for fd in os.listdir(fds)):
                return True
        except (OSError, psutil.Error):
            continue
    return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({process.status()}): {' '.join(process.cmdline()) or process.name()}"
    except psutil.ZombieProcess:
        return f"process {process.pid}, which ended and was never waited for"
    except psutil.Error:
        return f"process {process.pid}, which ended while it was being described"


def _environment_changes(before: Snapshot) -> list[str]:
    now = dict(os.environ)
    names = {name for name, _ in before.environment.items() ^ now.items()}
    return sorted(name for name in names if not name.startswith(ENVIRONMENT_OF_OTHERS))


def _leaks(before: Snapshot) -> list[str]:
    found = [
        f"thread {thread.name!r} ({type(thread).__name__})"
        for thread in threading.enumerate()
        if thread not in before.threads and type(thread).__name__ not in THREADS_OF_OTHERS
    ]
    found += [_describe(process) for process in _new_processes(before)]
    segments = {name for name in _names(SHM) if name.startswith("paceline")} - before.segments
    found += [f"shared memory {SHM / name}" for name in sorted(segments) if not _used_elsewhere(name)]
    found += [f"listening socket, fd {fd}" for fd, _ in sorted(set(_listeners()) - before.listeners)]
    found += [f"environment variable {name}" for name in _environment_changes(before)]
    return found


def _clean_up(before: Snapshot) -> None:
    for process in _new_processes(before):
        try:
            process.kill()
            process.wait(timeout=GRACE_S)
        except psutil.Error:
            continue
    for name in _environment_changes(before):
        if name in before.environment:
            os.environ[name] = before.environment[name]
        else:
            del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in tests/e2e is a `real_run`."""
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker("real_run")


@pytest.fixture(autouse=True)
def hygiene() -> Iterator[None]:
    """Fail the test that leaves something behind."""
    before = Snapshot.take()
    yield
    if not _leaks(before):
        return
    gc.collect()  # what only a reference cycle keeps alive is not a leak
    deadline = time.monotonic() + GRACE_S
    while leaks := _leaks(before):
        if time.monotonic() > deadline:
            _clean_up(before)
            pytest.fail("the test left behind: " + "; ".join(leaks), pytrace=False)
        time.sleep(0.02)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB, which is soon full."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "paceline-test", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes in one thread, as it does in a server."""
    import torch  # tests of roles without torch start without it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
