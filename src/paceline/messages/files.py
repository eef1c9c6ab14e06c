"""The user's files on their way to a host: an offer, what the host lacks, and its pieces.

One transfer has one number `req`, the number of its offer. A digest is a SHA-256 in hexadecimal digits.
"""

from __future__ import annotations

from paceline.messages.base import Message


class FileOffer(Message, frozen=True):
    """These files shall be on the host. `manifest` is an encoded list of files (`core/files/manifest.py`)."""

    req: int
    manifest: bytes


class FilesNeeded(Message, frozen=True):
    """The host lacks the contents with these digests; the answer to `FileOffer`. Empty if it has all of them."""

    req: int
    digests: tuple[str, ...]


class FilePiece(Message, frozen=True):
    """Bytes of the content `digest`, from `offset` on; with `last`, its end. Pieces of a content come in order."""

    req: int
    digest: str
    offset: int
    last: bool
    data: bytes


class FilePieceAck(Message, frozen=True):
    """The host has taken `pieces` pieces of this transfer so far."""

    req: int
    pieces: int


class FilesUnpacked(Message, frozen=True):
    """All files of the manifest with this digest are in their directory on the host; the end of the transfer."""

    req: int
    digest: str
