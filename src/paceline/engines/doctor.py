"""Looks at this machine, and at the way to a supervisor, for ``paceline doctor``. `core.hosts.checkup` judges."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

import paceline
from paceline.core.hosts.checkup import (
    Finding,
    Level,
    judge_address,
    judge_clock,
    judge_dial,
    judge_disk,
    judge_encryption,
    judge_files_limit,
    judge_machine,
    judge_ports,
    judge_proof,
    judge_shm,
    judge_unproven,
    judge_versions,
)
from paceline.engines.host_facts import address_towards, own_cores, own_devices, own_versions
from paceline.errors import TransportError, UsageError
from paceline.transport.base import PeerDown, PeerUp
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.seal import check_cryptography

_CONNECT_S = 3.0
_PROOF_S = 8.0
_SOME_ADDRESS = "192.0.2.1"  # of a network that is kept for examples: nothing is sent there
_TIME_ERROR = 5  # `adjtimex`: the clock is not synchronised


def examine(supervisor: tuple[str, int] | None, token: bytes | None, folder: Path) -> Iterator[Finding]:
    """Examine this machine, and the way to the supervisor at (address, port) if one is given.

    An agent would keep its files below `folder`.
    """
    yield judge_versions(own_versions())
    yield judge_encryption(_encryption_problem())
    yield _address(_SOME_ADDRESS if supervisor is None else supervisor[0])
    yield judge_ports(*_port_range())
    if supervisor is not None:
        yield from _way_to(*supervisor, token)
    memory = psutil.virtual_memory()
    yield judge_machine(own_cores(), int(memory.total), int(memory.available), own_devices())
    yield judge_files_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield judge_shm(*_shm())
    yield _disk(folder)
    yield judge_clock(_clock_is_synchronised(), time.time(), Path(paceline.__file__).stat().st_mtime)


# ---------------------------------------------------------------- the network


def _encryption_problem() -> str:
    try:
        check_cryptography()
    except TransportError as error:
        return str(error)
    return ""


def _address(towards: str) -> Finding:
    try:
        return judge_address(address_towards(towards))
    except UsageError as error:
        return judge_address("", str(error))


def _port_range() -> tuple[int, int]:
    """The ports from which the system chooses; (0, 0) if it does not say."""
    with suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    return 0, 0


def _way_to(host: str, port: int, token: bytes | None) -> Iterator[Finding]:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    error, answered = "", True
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as problem:
        error = problem.strerror or "no answer"
        answered = isinstance(problem, ConnectionRefusedError)
    reached = judge_dial(where, error, answered=answered)
    yield reached
    if reached.level is not Level.PROBLEM:
        yield judge_unproven(where) if token is None else _prove(where, token)


def _prove(where: str, token: bytes) -> Finding:
    """Prove the token to what listens at `where`, as an agent does; the session ends before the host is offered."""
    node = f"doctor/{os.getpid()}-{secrets.token_hex(4)}"
    try:
        port = ZmqPort(node, token, local=False, one_port=True)
        port.connect(f"tcp://{where}")
    except TransportError as error:
        return Finding("token", Level.PROBLEM, f"{where} was not asked: {error}")
    deadline = time.monotonic() + _PROOF_S
    try:
        while time.monotonic() < deadline:
            match port.recv(0.1):
                case PeerUp(peer=peer):
                    return judge_proof(where, peer, "", "")
                case PeerDown(reason=reason, refused=rule) if rule:
                    return judge_proof(where, "", rule, reason)
    finally:
        port.close()
    return judge_proof(where, "", "", "")


# ---------------------------------------------------------------- the machine


def _shm() -> tuple[int, int]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _disk(folder: Path) -> Finding:
    """Try to write below `folder`, or below the first directory above it that exists."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        return judge_disk(str(there), shutil.disk_usage(there).free)
    except OSError as error:
        return judge_disk(str(there), 0, error.strerror or str(error))


def _clock_is_synchronised() -> bool | None:
    """Whether the system keeps its clock right; None if it does not say, as in some containers."""
    with suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # mode 0: it only reads
        return None if state < 0 else state != _TIME_ERROR
    return None
