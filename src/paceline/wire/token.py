"""The job's token, and what is derived from it: proofs, tickets, and the key of encrypted connections.

Every process of a job knows the token; it is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

VERSION = 5
"""The version of the protocol. Raise it with every change after which an older Paceline could misread the messages.
Processes with different versions refuse each other."""

TOKEN_NBYTES = 32
_MIN_TOKEN_NBYTES = 16


def new_token() -> bytes:
    """A random token of 256 bits for one job."""
    return secrets.token_bytes(TOKEN_NBYTES)


def check_token(token: bytes) -> bytes:
    """Return `token` if it is long enough that it cannot be guessed.

    Raises:
        ValueError: it has fewer than 128 bits.
    """
    if len(token) < _MIN_TOKEN_NBYTES:
        raise ValueError(f"a job token must have at least {_MIN_TOKEN_NBYTES} bytes, not {len(token)}: use new_token()")
    return token


def curve_secret(token: bytes) -> bytes:
    """The 32-byte CURVE secret key of every listener of the job. Every process of the job derives it from the token."""
    return hashlib.blake2b(check_token(token), digest_size=32, person=b"paceline-curve").digest()


def mac(token: bytes, role: bytes, *fields: bytes) -> bytes:
    """The HMAC-SHA256, with the token as key, of the role, the protocol version and `fields`."""
    made = hmac.new(token, digestmod=hashlib.sha256)
    # The length of each field precedes it, so that two different lists of fields never give the same bytes.
    for field in (b"paceline", role, struct.pack("!H", VERSION), *fields):
        made.update(struct.pack("!I", len(field)))
        made.update(field)
    return made.digest()


def proofs_match(expected: bytes, shown: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(expected, shown)


def make_ticket(token: bytes, port: int) -> tuple[str, str]:
    """Make a ticket, a user name and a password, for one connection to the listener on TCP port `port`.

    The name is a nonce, and the password is the MAC of the nonce and the port. So the token is not sent, and a ticket
    that an impostor receives on one port is not valid on another port. A ticket does not prove a node id (the handshake
    does); it only keeps processes without the token from sending frames.
    """
    nonce = secrets.token_hex(16)
    return nonce, _ticket_mac(token, nonce, port)


def _ticket_mac(token: bytes, nonce: str, port: int) -> str:
    return mac(check_token(token), b"ticket", nonce.encode(), struct.pack("!I", port)).hex()


class TicketGate:
    """Checks the tickets of the connections to one listener. Each ticket is valid for one connection."""

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
