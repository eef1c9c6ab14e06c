"""Judges whether a machine can be a host, from what was found there. Pure functions: one for each line shown."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

_GIB = 1 << 30
_MIN_FILES = 1024
_MIN_SHM = 1 * _GIB
_MIN_MEMORY = 1 * _GIB
_MIN_DISK = 1 * _GIB


class Level(StrEnum):
    """How much a finding matters: nothing to do, something may be slow or incomplete, a run will fail."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about `what`, and what to `do` about it ("" for nothing)."""

    what: str
    level: Level
    text: str
    do: str = ""


def judge_versions(versions: Mapping[str, str]) -> Finding:
    """Judge the versions of paceline, torch and python, which must be equal on all hosts of a run."""
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if versions.get("torch", "none") == "none":
        return Finding("versions", Level.PROBLEM, text, "install torch: `pip install torch`")
    return Finding("versions", Level.OK, f"{text}; they must be equal on all hosts")


def judge_encryption(problem: str) -> Finding:
    """Judge whether connections to other hosts can be encrypted; `problem` says why not, "" if they can."""
    if problem:
        return Finding("encryption", Level.PROBLEM, problem, "pip install 'paceline[hosts]'")
    return Finding("encryption", Level.OK, "the package cryptography is there")


def judge_address(address: str, problem: str = "") -> Finding:
    """Judge the address of this machine that other hosts would use; `problem` says why there is none."""
    if problem:
        return Finding("address", Level.PROBLEM, problem, "check the network, or give `paceline agent` --address IP")
    if ipaddress.ip_address(address).is_loopback:
        return Finding(
            "address",
            Level.WARNING,
            f"{address} is a loopback address: no other machine can reach this one there",
            "give HOST:PORT at an address of the network that the hosts share, or `paceline agent` --address IP",
        )
    return Finding("address", Level.OK, f"other hosts reach this machine at {address}")


def judge_ports(first: int, last: int) -> Finding:
    """Say which ports other hosts must reach here, the system's own choice from `first` to `last`; nothing is tried."""
    where = f"{first} to {last}" if last else "of the system's choice"
    return Finding(
        "ports",
        Level.OK,
        f"roles listen on ports {where}; the other hosts must reach them here, which was not tried",
    )


def judge_dial(where: str, error: str, *, answered: bool) -> Finding:
    """Judge a TCP connection to `where`. With an `error`, `answered` says whether the machine has refused it."""
    if not error:
        return Finding("connection", Level.OK, f"{where} can be reached")
    if answered:
        do = "start `paceline run --engine hosts` with --listen at that address, or correct the port"
        return Finding("connection", Level.PROBLEM, f"nothing listens at {where} ({error})", do)
    do = "correct the address, or open that port in the firewalls between the machines"
    return Finding("connection", Level.PROBLEM, f"{where} cannot be reached ({error})", do)


def judge_proof(where: str, peer: str, rule: str, reason: str) -> Finding:
    """Judge the handshake with `where`: who has proven itself there (`peer`, "" for nobody), or why it was refused."""
    if peer.startswith("supervisor/"):
        return Finding("token", Level.OK, f"a supervisor listens at {where}, and its token is this one")
    if peer:
        role = peer.partition("/")[0]
        do = "give the address that `paceline run` has with --listen"
        return Finding("token", Level.PROBLEM, f"{where} is the port of a {role}, not of a supervisor", do)
    if rule in ("token", "connection-handshake"):
        do = "copy the file of `paceline token` from the machine of the run again, and give it as --token-file"
        return Finding("token", Level.PROBLEM, f"{where} has another token: {reason}", do)
    if rule == "version":
        return Finding("token", Level.PROBLEM, reason, "install the same version of Paceline on every host")
    if rule:
        return Finding("token", Level.PROBLEM, reason, "run the supervisor and the agents as one user")
    do = "correct the address: is another program at that port?"
    return Finding("token", Level.PROBLEM, f"what listens at {where} does not answer as a supervisor", do)


def judge_unproven(where: str) -> Finding:
    """Say that the token was not compared, since none was given."""
    return Finding("token", Level.WARNING, f"who listens at {where} was not proven", "give --token-file FILE")


def judge_files_limit(limit: int) -> Finding:
    """Judge how many files and connections a process may have open; -1 is no limit."""
    if limit == -1:
        return Finding("open files", Level.OK, "no limit")
    if limit < _MIN_FILES:
        do = f"raise it: `ulimit -n {4 * _MIN_FILES}`, or LimitNOFILE in a systemd unit"
        return Finding("open files", Level.WARNING, f"at most {limit} a process: few for many hosts", do)
    return Finding("open files", Level.OK, f"at most {limit} a process")


def judge_shm(size: int, free: int) -> Finding:
    """Judge /dev/shm. Paceline does not use it; processes that load samples (`loader_workers`) do."""
    if size <= 0:
        do = "mount it, if your script loads samples in processes of its own"
        return Finding("/dev/shm", Level.WARNING, "there is none", do)
    text = f"{_gib(free)} of {_gib(size)} free"
    if free < _MIN_SHM:
        do = "if your script loads samples in processes of its own, enlarge it (Docker: `--shm-size 2g`)"
        return Finding("/dev/shm", Level.WARNING, text, do)
    return Finding("/dev/shm", Level.OK, text)


def judge_disk(where: str, free: int, problem: str = "") -> Finding:
    """Judge the disk on which an agent keeps the files of a run; `problem` says why nothing can be written there."""
    if problem:
        do = "give `paceline agent` --dir DIR, or set PACELINE_CACHE"
        return Finding("disk", Level.PROBLEM, f"{where} cannot be written: {problem}", do)
    if free < _MIN_DISK:
        do = "free some space, or give `paceline agent` --dir DIR"
        return Finding("disk", Level.WARNING, f"{_gib(free)} free at {where}", do)
    return Finding("disk", Level.OK, f"{_gib(free)} free at {where}")


def judge_machine(cores: int, memory: int, available: int, devices: Sequence[str] = ()) -> Finding:
    """Judge cores and memory: each role takes about a quarter of a GB before it has a model."""
    text = f"{cores} core{'s' * (cores != 1)}, {_gib(available)} of {_gib(memory)} memory free"
    text += f", {', '.join(devices)}" * bool(devices)
    if available < _MIN_MEMORY:
        return Finding(
            "machine", Level.WARNING, text, "a role takes 0.25 GB and its part of the model: offer fewer --cores"
        )
    return Finding("machine", Level.OK, text)


def judge_clock(is_synchronised: bool | None, now: float, installed: float) -> Finding:
    """Judge the clock by the system's word (None: it does not say) and the time at which Paceline was `installed`."""
    do = "start a time service; nothing depends on the clock but the times in logs"
    if now < installed:
        return Finding("clock", Level.WARNING, "it is earlier than the time at which Paceline was installed", do)
    if is_synchronised is False:
        return Finding("clock", Level.WARNING, "the system says that it is not synchronised", do)
    if is_synchronised is None:
        return Finding("clock", Level.OK, "the system does not say whether it is synchronised; nothing depends on it")
    return Finding("clock", Level.OK, "it is synchronised; nothing depends on it")


def _gib(nbytes: int) -> str:
    return f"{nbytes / _GIB:.1f} GiB"
