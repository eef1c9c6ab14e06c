"""Processes that compute with unequal machines, and what that means for the bits. Pure functions of rule 12.

Two processes with equal fingerprints compute equal bits of equal input. Attempts of a slot are interchangeable only
while all workers have one fingerprint.
"""

from __future__ import annotations

from paceline.core.coordinator.tables.members import Member, Members

UNEQUAL_WORKERS = "unequal-workers"
UNEQUAL_SERVERS = "unequal-servers"
"""Topics of warnings."""


def workers_differ(members: Members) -> bool:
    """Whether two active workers compute with unequal machines."""
    return len(members.kinds("worker")) > 1


def kind_of_workers(members: Members) -> str:
    """The machine of all active workers; "" if they are unequal, or there are none."""
    kinds = members.kinds("worker")
    return kinds[0] if len(kinds) == 1 else ""


def other_kind(members: Members, role: str, name: str, fingerprint: str) -> Member | None:
    """A member of `role`, other than `name`, whose machine is not equal to that of `fingerprint`; None without any."""
    others = [kind for kind in members.kinds(role) if kind != fingerprint] if fingerprint else []
    return next((m for kind in others for m in members.of_kind(role, kind) if m.name != name), None)


def workers_text(one: Member, other: Member) -> str:
    """The warning about two unequal workers."""
    return (
        f"{one.name} computes with {one.fingerprint}, {other.name} with {other.fingerprint}: each slot counts as the "
        "whole attempt of one worker, and the bits of the weights depend on which worker computed which slot. Use "
        "equal machines to get the same bits in every run"
    )


def servers_text(one: Member, other: Member) -> str:
    """The warning about two unequal servers."""
    return (
        f"{one.name} updates its blocks with {one.fingerprint}, {other.name} with {other.fingerprint}: the bits of the "
        "weights depend on which server holds which block. Use equal machines to get the same bits in every run"
    )


def refusal(name: str, host: str, fingerprint: str, other: Member) -> str:
    """Why a process is refused in a job that allows one kind of machine."""
    return (
        f"{name} on host {host} computes with {fingerprint}, {other.name} on host {other.host} with "
        f"{other.fingerprint}, and this job allows one kind of machine (same_cpu): leave that host out, or allow "
        "unequal machines"
    )
