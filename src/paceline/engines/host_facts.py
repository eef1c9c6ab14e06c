"""What this machine offers as a host: cores, memory, devices, versions and the kind of its processor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket

import psutil

from paceline.core.hosts.checks import NAME
from paceline.errors import UsageError
from paceline.messages.hosts import HostFacts


def own_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_versions() -> dict[str, str]:
    """The versions that must be equal on all hosts of a run."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    python = ".".join(platform.python_version_tuple()[:2])
    return {"paceline": importlib.metadata.version("paceline"), "torch": torch, "python": python}


def own_cpu() -> str:
    """The kind of this machine's processor, as the system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def address_towards(host: str) -> str:
    """The address from which this machine reaches `host`: the other hosts can most likely reach it there.

    Raises:
        UsageError: there is no way to `host`.
    """
    # Nothing is sent: `connect` of a datagram socket makes the system choose the address that it would send from.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            own: str = probe.getsockname()[0]
        except OSError as error:
            raise UsageError(f"this machine has no way to {host}: {error.strerror}; check the network") from None
    return own


def host_facts(
    supervisor: str,
    *,
    name: str | None = None,
    address: str | None = None,
    cores: int | None = None,
    labels: tuple[str, ...] = (),
) -> HostFacts:
    """What this machine offers to the supervisor at the address `supervisor`. Arguments override what was found.

    Raises:
        UsageError: the name has another form, there is no way to the supervisor, or this machine cannot listen at
            `address`.
    """
    name = name if name is not None else socket.gethostname().partition(".")[0]
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: use letters, digits, dots and dashes, at most 64")
    address = address or address_towards(supervisor)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise UsageError(
                f"--address {address}: this machine cannot listen there ({error.strerror}); give one of its addresses"
            ) from None
    return HostFacts(
        name=name,
        address=address,
        cores=cores or own_cores(),
        memory_nbytes=int(psutil.virtual_memory().total),
        devices=own_devices(),
        labels=labels,
        versions=own_versions(),
        cpu=own_cpu(),
    )


def own_devices() -> tuple[str, ...]:
    """The accelerators of this machine, as the driver lists them; torch is not loaded for this."""
    folder = "/proc/driver/nvidia/gpus"
    try:
        return tuple(f"cuda:{number}" for number, _ in enumerate(sorted(os.listdir(folder))))
    except OSError:
        return ()
