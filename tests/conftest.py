"""Every test leaves nothing behind; the options, the markers and the order of the tests.

After each test there must be no new Python thread, process (child, or orphan of a child), shared memory named
paceline*, listening socket or change of the environment. Leftovers that are about to go get a short grace; others fail
the test by name. The fixture then kills the processes and restores the environment, so that the next test starts
clean. Resources of fixtures with a wider scope exist before the check begins and do not count.

Also here: fixtures that tests of several rooms use.
"""

from __future__ import annotations

import gc
import logging
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
from tests.kit.real_runs import cold as started_cold
from tests.kit.real_runs import warmed
from tests.kit.schedules import first_seed
from tests.kit.tiers import LONGEST_FIRST, REAL_UNITS

GRACE_S = 2.0
SHM = Path("/dev/shm")
FD = Path("/proc/self/fd")

# Every process started by a test inherits this variable: an orphan is recognised after its parent has ended.
MARK = "PYTEST_STARTED_BY"
os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"

# pytest sets the first; torch and its libraries set the others when they are first used.
ENVIRONMENT_OF_OTHERS = ("PYTEST_", "KMP_", "OMP_", "TORCHINDUCTOR_", "TRITON_")
# Lives as long as its ZeroMQ context by design: it owns the buffers of zero-copy sends.
THREADS_OF_OTHERS = ("GarbageCollectorThread",)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The resources at one moment. `pids` are all processes of the machine; only new ones are examined."""

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
        if is_child or process.status() == psutil.STATUS_ZOMBIE:  # init collects a dead orphan
            return is_child
        has_mark: bool = process.environ().get(MARK) == os.environ[MARK]
    except psutil.Error:
        return False
    return has_mark


def _new_processes(before: Snapshot) -> list[psutil.Process]:
    # multiprocessing starts one helper on first use and keeps it until the end.
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
    """Whether a live process that no test started uses the segment: then it belongs to another run."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-seed", type=int, default=None, help="the first simulator seed [default: by the code]")


def pytest_report_header(config: pytest.Config) -> str:
    """Print what plays the same seeds again."""
    return f"simulator seeds: --first-seed {first_seed(config)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in tests/e2e or `REAL_UNITS` as a `real_run`, and order the longest files first."""
    for item in items:
        is_unit = item.path.name in REAL_UNITS
        if "e2e" in item.path.parts or is_unit:
            item.add_marker("real_run")
        if item.get_closest_marker("real_run") and not is_unit and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "warm")
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def warm() -> Iterator[None]:
    """The commands of every `real_run` are forked from one process that has loaded torch."""
    with warmed():
        yield


@pytest.fixture
def cold() -> Iterator[None]:
    """Every command of the test is started, and loads torch by itself."""
    with started_cold():
        yield


@pytest.fixture(autouse=True)
def hygiene() -> Iterator[None]:
    """Fail a test that leaves a resource behind."""
    before = Snapshot.take()
    yield
    if not _leaks(before):
        return
    gc.collect()  # an object that only a reference cycle keeps alive is not a leak
    deadline = time.monotonic() + GRACE_S
    while leaks := _leaks(before):
        if time.monotonic() > deadline:
            _clean_up(before)
            pytest.fail("the test left behind: " + "; ".join(leaks), pytrace=False)
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo the log set-up of a command that a test runs in this process: later tests read the log by `caplog`."""
    logger = logging.getLogger("paceline")
    handlers, propagates, level = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:] = handlers
    logger.propagate = propagates
    logger.setLevel(level)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 1 MiB and return its path."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "paceline-test", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes in one thread, as in a server."""
    import torch  # tests of roles without torch do not load it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
