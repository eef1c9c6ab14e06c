"""Admission: whether a request may be answered, decided by its headers alone, before its body is read."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import RequestError, UsageError

OPEN = frozenset(("/v2/health/live", "/v2/health/ready"))
"""Paths that probes of a cluster ask, by the address of a container and without a token. They tell nothing else."""

LEAST_TOKEN = 16
"""The fewest characters of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """`hosts` are the names by which clients may call this server, besides localhost and IP addresses.

    `token` is what clients must prove; None for no token. A body has at most `max_body_nbytes` bytes.
    """

    hosts: frozenset[str] = frozenset()
    token: str | None = None
    max_body_nbytes: int = 64 << 20


def check_exposure(address: str, token: str | None) -> None:
    """Check that a server that others can reach has a token.

    Raises:
        UsageError: it has none, or one that can be guessed.
    """
    if token is None:
        if not _is_loopback(address):
            raise UsageError(
                f"--host {address} can be reached from other machines: give a token (--token-file FILE; `paceline "
                "token FILE` makes one)"
            )
    elif len(token) < LEAST_TOKEN:
        raise UsageError(f"the token has {len(token)} characters; it must have at least {LEAST_TOKEN}")


def admit(
    rules: AdmissionRules, method: str, path: str, headers: Mapping[str, str], duplicated: frozenset[str]
) -> None:
    """Admit a request, by its `headers` (names in lower case) and the names of those that came more than once.

    Raises:
        RequestError: the request is refused: a foreign Host or Origin, no or a wrong token, or too large a body.
    """
    if repeated := duplicated & {"host", "origin", "authorization", "content-length"}:
        raise RequestError(400, f"the header {min(repeated)} is given twice")
    if path in OPEN and method in ("GET", "HEAD"):
        return
    host = headers.get("host", "")
    if not _is_known(host, rules.hosts):
        raise RequestError(403, f"this server is not called {host[:100]!r}: name it with --allow-host")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise RequestError(403, f"requests of pages of {origin[:100]!r} are refused")
    if rules.token is not None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), rules.token.encode()):
            raise RequestError(401, "the header `Authorization: Bearer TOKEN` is missing or has another token")
    length = headers.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdecimal()):
            raise RequestError(400, "the header Content-Length is not a number")
        if int(length) > rules.max_body_nbytes:
            raise RequestError(413, f"the body has {length[:20]} bytes; at most {rules.max_body_nbytes} are read")


def _is_known(host: str, names: frozenset[str]) -> bool:
    """Whether `host`, a Host header, is a name of this server. A page of another site cannot send an IP address."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
