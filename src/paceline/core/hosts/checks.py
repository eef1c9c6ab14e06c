"""What a host must have in common with its supervisor, and which addresses it may announce. Pure functions."""

from __future__ import annotations

import ipaddress
import re

from paceline.messages.hosts import HostFacts

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The form of a host's name."""

_REMEDY = {
    "paceline": "install the same version of Paceline on every host",
    "torch": "install the same build of torch on every host",
    "python": "use the same minor version of Python on every host",
}


def final_problem(facts: HostFacts, versions: dict[str, str]) -> str | None:
    """Why a host with these facts cannot take part in a run of a supervisor with `versions`; None if it can."""
    if not NAME.fullmatch(facts.name):
        return f"--name {facts.name[:64]!r}: use letters, digits, dots and dashes, at most 64"
    if facts.cores < 1:
        return f"--cores {facts.cores}: a host must offer at least one core"
    for what, mine in versions.items():
        theirs = facts.versions.get(what, "none")
        if theirs != mine:
            return (
                f"{facts.name} has {what} {theirs}, the supervisor has {mine}: {_REMEDY.get(what, 'make them equal')}"
            )
    return None


def address_problem(facts: HostFacts, listen: str) -> str | None:
    """Why other hosts cannot reach the roles of a host at its address; None if they may.

    `listen` is the address of the supervisor. If that is a loopback address, all hosts are this machine.
    """
    try:
        address, mine = ipaddress.ip_address(facts.address), ipaddress.ip_address(listen)
    except ValueError:
        return f"--address {facts.address}: give an IP address at which the other hosts reach {facts.name}"
    if address.is_unspecified or address.is_multicast:
        return f"--address {facts.address}: give the one IP address at which the other hosts reach {facts.name}"
    if address.is_loopback and not mine.is_loopback:
        return (
            f"--address {facts.address}: other hosts cannot reach a loopback address; give another one of {facts.name}"
        )
    return None
