"""The receiving side of transfers of files: asks for the contents that are missing, and takes their pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.core.files.manifest import LIMIT_NBYTES, FileManifest, decode
from paceline.core.files.sender import PIECE_NBYTES
from paceline.errors import FilesError
from paceline.messages import FileOffer, FilePiece, FilePieceAck, FilesNeeded, FilesUnpacked, Message, Refused

RULE = "files"
"""The rule that `Refused` names."""


class ContentWriter(Protocol):
    """One content that is being written."""

    def add(self, data: bytes) -> None:
        """Append `data`.

        Raises:
            FilesError: the content is longer than declared, or cannot be written.
        """
        ...

    def finish(self) -> None:
        """Check size and SHA-256 of the content, then keep it.

        Raises:
            FilesError: they are not those declared, or the content cannot be kept. Nothing is left of it.
        """
        ...

    def abort(self) -> None:
        """Drop what was written."""
        ...


class ContentStore(Protocol):
    """Where the receiver keeps contents."""

    def missing(self, manifest: FileManifest) -> Collection[str]:
        """The digests of the contents that are not there.

        Raises:
            FilesError: the store has no room for them.
        """
        ...

    def writing(self, digest: str, nbytes: int) -> ContentWriter:
        """Begin to write a content.

        Raises:
            FilesError: the content cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unpack:
    """Unpack the files of `manifest` from the store, then call `unpacked` of the receiver. It may take a while."""

    req: int
    manifest: FileManifest


class FileReceiver:
    """Receives files from one peer, one transfer at a time: a new offer ends the one before.

    Feed it the peer's messages; send the messages that it returns, and carry out `Unpack`.
    """

    def __init__(self, store: ContentStore, limit_nbytes: int = LIMIT_NBYTES) -> None:
        self._store = store
        self._limit_nbytes = limit_nbytes
        self._req: int | None = None
        self._manifest: FileManifest | None = None
        self._left: list[str] = []
        self._writer: ContentWriter | None = None
        self._offset = self._taken = 0

    def handle(self, message: Message) -> Sequence[Message | Unpack]:
        """Take a message of the peer. A refused transfer ends; its contents that are complete stay in the store."""
        try:
            match message:
                case FileOffer(req=req, manifest=content):
                    self.close()
                    self._req = req
                    return self._offered(req, content)
                case FilePiece(req=req) if req == self._req and self._manifest is not None:
                    return self._take(message, self._manifest)
                case FilePiece(req=req):
                    return [Refused(req, RULE, "this transfer is over: offer the files again")]
        except FilesError as error:
            assert isinstance(message, FileOffer | FilePiece)
            self.close()
            return [Refused(message.req, RULE, str(error))]
        return []

    def unpacked(self, req: int, problem: str = "") -> list[Message]:
        """The files of transfer `req` are unpacked, or `problem` says why not."""
        if req != self._req or self._manifest is None:
            return []
        digest = self._manifest.digest
        self.close()
        return [Refused(req, RULE, problem) if problem else FilesUnpacked(req, digest)]

    def close(self) -> None:
        """End the transfer, for example because the peer is gone."""
        if self._writer is not None:
            self._writer.abort()
        self._writer, self._req, self._manifest, self._left = None, None, None, []
        self._offset = self._taken = 0

    def _offered(self, req: int, content: bytes) -> Sequence[Message | Unpack]:
        manifest = decode(content, self._limit_nbytes)
        missing = self._store.missing(manifest)
        self._manifest = manifest
        self._left = [digest for digest in manifest.contents if digest in missing]
        needed = FilesNeeded(req, tuple(self._left))
        return [needed] if self._left else [needed, Unpack(req, manifest)]

    def _take(self, piece: FilePiece, manifest: FileManifest) -> Sequence[Message | Unpack]:
        if not self._left or (piece.digest, piece.offset) != (self._left[0], self._offset):
            raise FilesError(f"a piece of {piece.digest[:12]} at {piece.offset} came, which is not the next one")
        if len(piece.data) > PIECE_NBYTES or not (piece.data or piece.last):
            raise FilesError(f"a piece has {len(piece.data)} bytes; 1 to {PIECE_NBYTES} are allowed")
        if self._writer is None:
            self._writer = self._store.writing(piece.digest, manifest.contents[piece.digest])
        self._writer.add(piece.data)
        self._offset += len(piece.data)
        self._taken += 1
        out: list[Message | Unpack] = [FilePieceAck(piece.req, self._taken)]
        if piece.last:
            writer, self._writer = self._writer, None
            writer.finish()
            self._left.pop(0)
            self._offset = 0
            if not self._left:
                out.append(Unpack(piece.req, manifest))
        return out
