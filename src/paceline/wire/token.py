"""The job's token, and all that follows from it: proofs, tickets, and the key of encrypted connections.

Every process of a job knows the token; it is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

VERSION = 3
"""Raise it with every change after which two builds could misread each other. Different versions refuse each other."""

TOKEN_NBYTES = 32
_MIN_TOKEN_NBYTES = 16


def new_token() -> bytes:
    """A random token of 256 bits for one job."""
    return secrets.token_bytes(TOKEN_NBYTES)


def check_token(token: bytes) -> bytes:
    """`token`, if it is too long to be guessed.

    Raises:
        ValueError: it has fewer than 128 bits.
    """
    if len(token) < _MIN_TOKEN_NBYTES:
        raise ValueError(f"a job token has at least {_MIN_TOKEN_NBYTES} bytes, this one {len(token)}: use new_token()")
    return token


def curve_secret(token: bytes) -> bytes:
    """The 32-byte CURVE secret key of every listener of the job. It follows from the token, so every peer knows it."""
    return hashlib.blake2b(check_token(token), digest_size=32, person=b"paceline-curve").digest()


def mac(token: bytes, role: bytes, *fields: bytes) -> bytes:
    """HMAC-SHA256 under the token over the role, the protocol version and `fields`."""
    made = hmac.new(token, digestmod=hashlib.sha256)
    # Lengths in front: no two different lists of fields give the same bytes.
    for field in (b"paceline", role, struct.pack("!H", VERSION), *fields):
        made.update(struct.pack("!I", len(field)))
        made.update(field)
    return made.digest()


def proofs_match(expected: bytes, shown: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(expected, shown)


def make_ticket(token: bytes, port: int) -> tuple[str, str]:
    """A user name and a password that admit one connection to the listener on TCP port `port`.

    The name is a nonce and the password its MAC: the token is not sent, and a ticket that an impostor sees on one port
    is not valid on another. A ticket does not prove a node id (the handshake does that); it only keeps processes
    without the token from sending frames.
    """
    nonce = secrets.token_hex(16)
    return nonce, _ticket_mac(token, nonce, port)


def _ticket_mac(token: bytes, nonce: str, port: int) -> str:
    return mac(check_token(token), b"ticket", nonce.encode(), struct.pack("!I", port)).hex()


class TicketGate:
    """Checks tickets for one listener. Each is valid for one connection."""

    def __init__(self, token: bytes, port: int, *, remember: int = 4096) -> None:
        self._token = check_token(token)
        self._port = port
        self._remember = remember
        self._used: dict[str, None] = {}

    def admits(self, name: str, password: str) -> bool:
        """Whether the pair is a ticket of this job, for this port, that was not used before."""
        expected = _ticket_mac(self._token, name, self._port)
        if not proofs_match(expected.encode(), password.encode()) or name in self._used:
            return False
        self._used[name] = None
        if len(self._used) > self._remember:
            del self._used[next(iter(self._used))]
        return True
