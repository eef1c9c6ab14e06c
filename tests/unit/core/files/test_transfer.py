"""Files go from a sender to a receiver in bounded pieces; whatever is wrong on the way ends the transfer by name."""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.files.manifest import FileEntry, FileManifest, manifest_of
from paceline.core.files.receiver import FileReceiver, Unpack
from paceline.core.files.sender import PIECE_NBYTES, WINDOW, FileSender
from paceline.engines.bundle.store import Store
from paceline.messages import (
    FileOffer,
    FilePiece,
    FilePieceAck,
    FilesNeeded,
    FilesUnpacked,
    Message,
    Ok,
    Refused,
)
from paceline.wire.headers import decode_header, encode_header

SIZES = {"empty": 0, "one": 1, "exact": PIECE_NBYTES, "long": 3 * PIECE_NBYTES + 5, "many": 40 * PIECE_NBYTES}


def content_of(name: str) -> bytes:
    return (sha256(name.encode()).digest() * (SIZES[name] // 32 + 1))[: SIZES[name]]


def make(store: Store, *names: str) -> FileManifest:
    """Put the contents of these names into the store; return their manifest."""
    entries = [FileEntry(name, sha256(content_of(name)).hexdigest(), SIZES[name]) for name in names]
    for entry in entries:
        store.write(entry.sha256, entry.nbytes, [content_of(entry.path)])
    return manifest_of(entries)


class Transfer:
    """A sender and a receiver with their two stores; `play` carries messages until nothing is left to do."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.here, self.there = Store(folder / "here"), Store(folder / "there")
        self.manifest = make(self.here, *names)
        self.sender = FileSender(self.manifest, self.here, 7)
        self.receiver = FileReceiver(self.there)
        self.unpacked: list[FileManifest] = []
        self.most_in_flight = 0
        self.pieces = 0

    def play(self) -> None:
        going = deque(self.sender.start())
        coming: deque[Message] = deque()
        while going or coming:
            self.most_in_flight = max(self.most_in_flight, sum(isinstance(m, FilePiece) for m in going))
            if going:
                message = decode_header(encode_header(going.popleft()))
                self.pieces += isinstance(message, FilePiece)
                for out in self.receiver.handle(message):
                    if isinstance(out, Unpack):
                        self.unpacked.append(out.manifest)
                        coming.extend(self.receiver.unpacked(out.req))
                    else:
                        coming.append(out)
            else:
                going.extend(self.sender.handle(decode_header(encode_header(coming.popleft()))))


def test_all_contents_arrive_and_few_pieces_are_on_their_way(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, *SIZES)
    transfer.play()
    assert transfer.sender.done
    assert transfer.unpacked == [transfer.manifest]
    assert transfer.there.missing(transfer.manifest) == set()
    assert 1 < transfer.most_in_flight <= WINDOW
    assert transfer.pieces == 1 + 1 + 1 + 4 + 40


def test_only_what_is_missing_is_sent(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, *SIZES)
    make(transfer.there, "many", "empty")
    transfer.play()
    assert (transfer.sender.done, transfer.pieces) == (True, 6)
    again = FileSender(transfer.manifest, transfer.here, 8)
    replies = transfer.receiver.handle(again.start()[0])
    assert replies == [FilesNeeded(8, ()), Unpack(8, transfer.manifest)]


def test_a_transfer_that_broke_goes_on_with_the_next_sender(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, "one", "long", "many")
    (needed,) = transfer.receiver.handle(transfer.sender.start()[0])
    assert isinstance(needed, FilesNeeded)
    for piece in transfer.sender.handle(needed)[:12]:
        transfer.receiver.handle(piece)
    transfer.receiver.close()
    assert not list((tmp_path / "there").rglob("*.part")), "what is incomplete is removed"
    transfer.sender = FileSender(transfer.manifest, transfer.here, 8)
    transfer.play()
    assert transfer.sender.done
    assert transfer.pieces < 45


def started(transfer: Transfer) -> list[FilePiece]:
    """Play until the sender has sent its first pieces, which have not arrived."""
    (needed,) = transfer.receiver.handle(transfer.sender.start()[0])
    assert isinstance(needed, FilesNeeded)
    pieces = transfer.sender.handle(needed)
    return [piece for piece in pieces if isinstance(piece, FilePiece)]


WRONG: dict[str, dict[str, Any]] = {
    "another byte": {"data": b"\xff" * PIECE_NBYTES},
    "too short": {"data": b"", "last": True},
    "cut": {"data": b"abc", "last": True},
    "empty": {"data": b""},
    "too long": {"data": bytes(PIECE_NBYTES + 1)},
    "too early": {"last": True},
    "offset": {"offset": 5},
    "negative": {"offset": -1},
    "another content": {"digest": sha256(b"other").hexdigest()},
    "a path": {"digest": "../../../../etc/passwd"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_piece_ends_the_transfer_and_leaves_nothing(tmp_path: Path, wrong: str) -> None:
    transfer = Transfer(tmp_path, "long")
    pieces = started(transfer)
    out: list[Message | Unpack] = []
    for piece in [msgspec.structs.replace(pieces[0], **WRONG[wrong]), *pieces[1:]]:
        out += transfer.receiver.handle(piece)
    assert any(isinstance(message, Refused) for message in out)
    assert not any(isinstance(message, Unpack) for message in out)
    assert transfer.there.missing(transfer.manifest) == set(transfer.manifest.contents)
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_pieces_that_are_cut_flipped_lost_or_repeated_never_pass(tmp_path: Path, data: st.DataObject) -> None:
    folder = Path(mkdtemp(dir=tmp_path))
    transfer = Transfer(folder, "one", "long")
    pieces = started(transfer)
    number = data.draw(st.integers(0, len(pieces) - 1))
    piece = pieces[number]
    if not data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(piece.data) - 1))
        flipped = bytearray(piece.data)
        flipped[at] ^= data.draw(st.integers(1, 255))
        cut = data.draw(st.booleans())
        pieces[number] = msgspec.structs.replace(piece, data=piece.data[:at] if cut else bytes(flipped))
    elif data.draw(st.booleans()):
        del pieces[number]
    else:
        pieces.insert(number, piece)
    unpacks = [out for piece in pieces for out in transfer.receiver.handle(piece) if isinstance(out, Unpack)]
    if unpacks:  # the piece was harmless: the last one came twice
        assert transfer.there.missing(transfer.manifest) == set()
    kept = [path for path in (folder / "there").rglob("*") if path.is_file()]
    assert all(sha256(path.read_bytes()).hexdigest() == path.name for path in kept)


def test_an_offer_of_10_gb_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    large = msgspec.json.encode(FileManifest((FileEntry("large", sha256().hexdigest(), 10 << 30),)))
    receiver = FileReceiver(Store(tmp_path / "there"))
    (refused,) = receiver.handle(FileOffer(3, large))
    assert isinstance(refused, Refused)
    assert (refused.req, refused.rule) == (3, "files")
    assert not (tmp_path / "there").exists()
    (over,) = receiver.handle(FilePiece(3, sha256().hexdigest(), 0, False, b"x"))
    assert isinstance(over, Refused)


def test_a_piece_without_an_offer_is_refused(tmp_path: Path) -> None:
    receiver = FileReceiver(Store(tmp_path))
    (refused,) = receiver.handle(FilePiece(1, sha256().hexdigest(), 0, True, b""))
    assert isinstance(refused, Refused)
    assert receiver.handle(Ok(1)) == []
    assert receiver.unpacked(1) == []


def test_a_new_offer_ends_the_one_before(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, "long")
    pieces = started(transfer)
    transfer.receiver.handle(pieces[0])
    transfer.receiver.handle(FileOffer(8, transfer.manifest.encode()))
    (refused,) = transfer.receiver.handle(pieces[1])
    assert isinstance(refused, Refused)
    assert list((tmp_path / "there").rglob("*.part")) == []


def test_a_failed_unpacking_is_the_senders_problem(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, "one")
    (piece,) = started(transfer)
    ack, unpack = transfer.receiver.handle(piece)
    assert isinstance(ack, FilePieceAck)
    assert isinstance(unpack, Unpack)
    (refused,) = transfer.receiver.unpacked(unpack.req, "the disk is full")
    assert transfer.sender.handle(refused) == []
    assert (transfer.sender.done, transfer.sender.problem) == (False, "the disk is full")


def test_the_sender_ignores_what_does_not_fit_and_refuses_to_send_other_files(tmp_path: Path) -> None:
    transfer = Transfer(tmp_path, "many")
    (needed,) = transfer.receiver.handle(transfer.sender.start()[0])
    assert isinstance(needed, FilesNeeded)
    assert len(transfer.sender.handle(needed)) == WINDOW
    for message in (
        needed,
        FilePieceAck(9, 1),
        FilePieceAck(7, 0),
        FilePieceAck(7, WINDOW + 1),
        FilesUnpacked(7, sha256().hexdigest()),
        Refused(9, "files", "another transfer"),
    ):
        assert transfer.sender.handle(message) == []
    assert len(transfer.sender.handle(FilePieceAck(7, 3))) == 3
    assert (transfer.sender.done, transfer.sender.problem) == (False, "")
    other = FileSender(transfer.manifest, transfer.here, 9)
    assert other.handle(FilesNeeded(9, (sha256(b"secret").hexdigest(),))) == []
    assert "not of this run" in other.problem
