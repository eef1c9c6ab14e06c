"""The sending side of one transfer of files: offers a manifest, and sends the contents that the host lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paceline.core.files.manifest import FileManifest
from paceline.messages import FileOffer, FilePiece, FilePieceAck, FilesNeeded, FilesUnpacked, Message, Refused

PIECE_NBYTES = 128 << 10
"""The largest piece in bytes."""

WINDOW = 16
"""How many pieces may be on their way: together 2 MiB per host."""


class ContentReader(Protocol):
    """Where the sender reads contents."""

    def read_at(self, digest: str, offset: int, nbytes: int) -> bytes:
        """The bytes of the content `digest` from `offset` on, exactly `nbytes`.

        Raises:
            FilesError: the content is not there, or is shorter.
        """
        ...


class FileSender:
    """Sends the files of `manifest` to one host. Feed it the host's messages; send the messages that it returns.

    `done` is true once the host has the files; `problem` says why it will never have them, "" until then. After a lost
    session, make a new sender: the host asks only for what it still lacks.
    """

    def __init__(self, manifest: FileManifest, contents: ContentReader, req: int) -> None:
        self.done = False
        self.problem = ""
        self._manifest = manifest
        self._contents = contents
        self._req = req
        self._left: Iterator[tuple[str, int, int, bool]] | None = None
        self._sent = self._taken = 0

    def start(self) -> list[Message]:
        """Offer the files."""
        return [FileOffer(self._req, self._manifest.encode())]

    def handle(self, message: Message) -> list[Message]:
        """Take a message of the host. Messages of another transfer, and those that do not fit, change nothing.

        Raises:
            FilesError: a content cannot be read any more.
        """
        if self.done or self.problem:
            return []
        match message:
            case FilesNeeded(req=self._req, digests=digests) if self._left is None:
                sizes = self._manifest.contents
                if any(digest not in sizes for digest in digests) or len(set(digests)) < len(digests):
                    self.problem = "the host asked for files that are not of this run"
                    return []
                self._left = _pieces({digest: sizes[digest] for digest in digests})
                return self._more()
            case FilePieceAck(req=self._req, pieces=pieces) if self._taken < pieces <= self._sent:
                self._taken = pieces
                return self._more()
            case FilesUnpacked(req=self._req, digest=digest) if digest == self._manifest.digest:
                self.done = True
            case Refused(req=self._req, detail=detail):
                self.problem = detail
        return []

    def fail(self, problem: str) -> None:
        """End the transfer: the host will never have the files, for this `problem`."""
        self.problem = problem

    def _more(self) -> list[Message]:
        out: list[Message] = []
        while self._left is not None and self._sent - self._taken < WINDOW:
            if (piece := next(self._left, None)) is None:
                break
            digest, offset, nbytes, last = piece
            data = self._contents.read_at(digest, offset, nbytes)
            out.append(FilePiece(self._req, digest, offset, last, data))
            self._sent += 1
        return out


def _pieces(sizes: dict[str, int]) -> Iterator[tuple[str, int, int, bool]]:
    """The pieces of contents: digest, offset, bytes, whether it is the last. An empty content has one empty piece."""
    for digest, size in sizes.items():
        for offset in range(0, max(size, 1), PIECE_NBYTES):
            nbytes = min(PIECE_NBYTES, size - offset)
            yield digest, offset, nbytes, offset + nbytes == size
