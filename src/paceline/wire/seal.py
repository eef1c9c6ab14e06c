"""Seal the bytes of a connection with AES-GCM: chunk by chunk, in one order, under one key for each direction. No I/O.

A connection carries chunks. A chunk is a prefix and the sealed bytes::

    kind, nbytes, number  |  nbytes sealed bytes  |  tag of 16 bytes        (SEALED)
    kind, nbytes, number  |  nbytes bytes as they are                       (CLEAR, only with insecure blocks)

`number` counts the chunks of one direction from 0. It is the nonce, so no nonce repeats under a key: a key belongs to
one direction of one connection, and a direction ends before its numbers do. The prefix is authenticated with the bytes.
So a chunk that is repeated, left out, moved, sent back, cut or changed is refused: its number is not the next one, or
its tag does not fit. What the bytes mean is defined by the sealed records (`paceline.transport.streams.records`): a
record says how many bytes of header and of each frame follow, so no part can move to another message.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from paceline.errors import RefusedFrameError, TransportError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHUNK_NBYTES = 256 << 10
"""The largest number of bytes in one sealed chunk."""
TAG_NBYTES = 16
SEALED, CLEAR = 1, 2

_PREFIX = struct.Struct("!B3xIQ")
_NONCE = struct.Struct("!4xQ")
PREFIX_NBYTES = _PREFIX.size
MAX_CHUNK_NBYTES = PREFIX_NBYTES + CHUNK_NBYTES + TAG_NBYTES
_LAST_NUMBER = (1 << 63) - 1
INSTALL = "pip install 'paceline[hosts]'"


def check_cryptography() -> None:
    """Check that the package `cryptography` is there, which encrypted connections need.

    Raises:
        TransportError: it is missing or too old; the message has the line that installs it.
    """
    _cipher(bytes(32))


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise TransportError(
            f"connections to other hosts are encrypted by the package `cryptography`, which is missing: {INSTALL}"
        ) from None
    if not hasattr(AESGCM, "encrypt_into"):
        raise TransportError(f"the package `cryptography` is older than 47, which Paceline needs: {INSTALL}")
    return AESGCM(key)


class Sealer:
    """The sending direction: gives each chunk the next number."""

    __slots__ = ("_cipher", "_number")

    def __init__(self, key: bytes, *, number: int = 0) -> None:
        self._cipher = _cipher(key)
        self._number = number

    def seal_into(self, content: memoryview, out: memoryview) -> int:
        """Write the sealed chunk of `content` to the start of `out`, and return the size of the chunk.

        Raises:
            TransportError: all numbers of this direction are used; the connection must end.
        """
        nbytes = content.nbytes
        size = PREFIX_NBYTES + nbytes + TAG_NBYTES
        number = self._next()
        prefix = _PREFIX.pack(SEALED, nbytes, number)
        out[:PREFIX_NBYTES] = prefix
        self._cipher.encrypt_into(_NONCE.pack(number), content, prefix, out[PREFIX_NBYTES:size])
        return size

    def clear_prefix(self, nbytes: int) -> bytes:
        """The prefix of a chunk of `nbytes` bytes that travel as they are.

        Raises:
            TransportError: as `seal_into`.
        """
        return _PREFIX.pack(CLEAR, nbytes, self._next())

    def _next(self) -> int:
        number = self._number
        if number > _LAST_NUMBER:
            raise TransportError("all numbers of this connection are used: no further chunk can be sealed")
        self._number = number + 1
        return number


class Opener:
    """The receiving direction: accepts each number once, in order."""

    __slots__ = ("_cipher", "_clear", "_invalid", "_number")

    def __init__(self, key: bytes, *, clear_blocks: bool = False) -> None:
        """With `clear_blocks`, chunks of frames may come unsealed."""
        self._cipher = _cipher(key)
        from cryptography.exceptions import InvalidTag

        self._invalid = InvalidTag
        self._clear = clear_blocks
        self._number = 0

    def open_prefix(self, prefix: memoryview) -> tuple[bool, int]:
        """Check the prefix of the next chunk; returns whether the chunk is sealed, and the size of its content.

        Raises:
            RefusedFrameError: rule ``seal-order`` for a chunk that is not the next one, ``seal`` for an unknown kind, a
                size above the limit, or an unsealed chunk where none may come.
        """
        kind, nbytes, number = _PREFIX.unpack_from(prefix)
        if kind != SEALED and not (kind == CLEAR and self._clear):
            raise RefusedFrameError("seal", f"a chunk of kind {kind}, which is not sealed")
        if not nbytes or (kind == SEALED and nbytes > CHUNK_NBYTES):
            raise RefusedFrameError("seal", f"a chunk of {nbytes} bytes, at least 1 and at most {CHUNK_NBYTES}")
        if number != self._number:
            raise RefusedFrameError(
                "seal-order", f"chunk {number} came in place of chunk {self._number}: repeated, moved or left out"
            )
        return kind == SEALED, nbytes

    @staticmethod
    def next_nbytes(received: memoryview) -> int:
        """How many of the bytes that begin with `received` must be there to open the next chunk, or to refuse it."""
        if received.nbytes < PREFIX_NBYTES:
            return PREFIX_NBYTES
        kind, nbytes, _ = _PREFIX.unpack_from(received)
        whole = PREFIX_NBYTES + int(nbytes) + TAG_NBYTES
        return whole if kind == SEALED and whole <= MAX_CHUNK_NBYTES else PREFIX_NBYTES

    def open_into(self, chunk: memoryview, out: memoryview) -> None:
        """Check the sealed `chunk`, which begins with its prefix, and write its content to `out` of the same size.

        If the check fails, `out` is overwritten all the same.

        Raises:
            RefusedFrameError: rule ``seal``: a byte of the chunk was changed, or another key has sealed it.
        """
        nonce = _NONCE.pack(self._number)
        try:
            self._cipher.decrypt_into(nonce, chunk[PREFIX_NBYTES:], chunk[:PREFIX_NBYTES], out)
        except self._invalid:
            raise RefusedFrameError("seal", f"chunk {self._number} was changed on its way") from None
        self._number += 1

    def passed(self) -> None:
        """Count an unsealed chunk, whose prefix was checked."""
        self._number += 1
