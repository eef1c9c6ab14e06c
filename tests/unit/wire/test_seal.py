"""Sealed chunks: each is accepted once, in order, unchanged, in its own direction; all else is refused by name."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import pytest

from paceline.errors import RefusedFrameError, TransportError
from paceline.wire import seal
from paceline.wire.seal import CHUNK_NBYTES, MAX_CHUNK_NBYTES, PREFIX_NBYTES, TAG_NBYTES, Opener, Sealer

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def sealed(sealer: Sealer, content: bytes) -> bytes:
    out = memoryview(bytearray(MAX_CHUNK_NBYTES))
    return bytes(out[: sealer.seal_into(memoryview(content), out)])


def opened(opener: Opener, chunk: bytes) -> bytes:
    """What the receiving side does with the bytes of a chunk."""
    is_sealed, nbytes = opener.open_prefix(memoryview(chunk))
    assert is_sealed
    out = memoryview(bytearray(nbytes))
    opener.open_into(memoryview(chunk)[: PREFIX_NBYTES + nbytes + TAG_NBYTES], out)
    return bytes(out)


def refused(opener: Opener, chunk: bytes) -> str:
    with pytest.raises(RefusedFrameError) as error:
        opened(opener, chunk)
    return error.value.rule


@pytest.mark.parametrize("nbytes", [1, 15, 16, 17, 1000, CHUNK_NBYTES])
def test_content_comes_back_and_is_not_readable_on_its_way(nbytes: int) -> None:
    content = random.Random(nbytes).randbytes(nbytes)
    chunk = sealed(Sealer(KEY), content)
    assert len(chunk) == nbytes + PREFIX_NBYTES + TAG_NBYTES
    assert nbytes < 8 or content[:8] not in chunk
    assert opened(Opener(KEY), chunk) == content


def test_a_flipped_bit_anywhere_is_refused() -> None:
    chunk = sealed(Sealer(KEY), b"the content of a chunk")
    for position in range(len(chunk) * 8):
        changed = bytearray(chunk)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises((RefusedFrameError, ValueError)) as error:
            opened(Opener(KEY), bytes(changed))
        if isinstance(error.value, RefusedFrameError):
            assert error.value.rule in ("seal", "seal-order")
        else:
            assert 4 <= position // 8 < 8, "a longer size only: the channel waits for the missing bytes"


def test_a_repeated_chunk_is_refused() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    first = sealed(sealer, b"first")
    assert opened(opener, first) == b"first"
    assert refused(opener, first) == "seal-order"


def test_swapped_and_missing_chunks_are_refused() -> None:
    sealer = Sealer(KEY)
    first, second = sealed(sealer, b"block 1"), sealed(sealer, b"block 2")
    assert refused(Opener(KEY), second) == "seal-order"
    swapped = first[:PREFIX_NBYTES] + second[PREFIX_NBYTES:]  # the content of the second under the number of the first
    assert refused(Opener(KEY), swapped) == "seal"


def test_a_cut_chunk_is_refused() -> None:
    chunk = sealed(Sealer(KEY), b"twenty bytes of this.")
    nbytes = len(chunk) - PREFIX_NBYTES - TAG_NBYTES
    shorter = bytearray(chunk[:-1])
    struct.pack_into("!I", shorter, 4, nbytes - 1)
    assert refused(Opener(KEY), bytes(shorter)) == "seal"


def test_the_chunk_of_another_key_is_refused() -> None:
    """So is what a peer sent itself, and what another connection carried: each direction of each has its own key."""
    assert refused(Opener(OTHER), sealed(Sealer(KEY), b"content")) == "seal"


@pytest.mark.parametrize("nbytes", [0, CHUNK_NBYTES + 1, (1 << 32) - 1])
def test_impossible_sizes_are_refused_before_anything_is_opened(nbytes: int) -> None:
    prefix = memoryview(struct.pack("!B3xIQ", seal.SEALED, nbytes, 0))
    assert Opener.next_nbytes(prefix) <= MAX_CHUNK_NBYTES
    with pytest.raises(RefusedFrameError, match="bytes"):
        Opener(KEY).open_prefix(prefix)


def test_unsealed_chunks_are_refused_unless_both_sides_agreed() -> None:
    prefix = memoryview(Sealer(KEY).clear_prefix(100))
    with pytest.raises(RefusedFrameError, match="not sealed"):
        Opener(KEY).open_prefix(prefix)
    assert Opener(KEY, clear_blocks=True).open_prefix(prefix) == (False, 100)
    with pytest.raises(RefusedFrameError, match="kind 7"):
        Opener(KEY, clear_blocks=True).open_prefix(memoryview(b"\x07" + bytes(prefix)[1:]))


def test_no_nonce_repeats_and_a_direction_ends_before_its_numbers_do() -> None:
    class Spy:
        def __init__(self) -> None:
            self.nonces: list[bytes] = []

        def encrypt_into(self, nonce: bytes, *_: Any) -> None:
            self.nonces.append(nonce)

    spy, sealer = Spy(), Sealer(KEY)
    sealer._cipher = spy  # type: ignore[assignment]
    for number in range(300):
        if number % 3:
            sealed(sealer, b"x")
        else:
            sealer.clear_prefix(5)
    assert len(set(spy.nonces)) == len(spy.nonces) == 200
    last = Sealer(KEY, number=(1 << 63) - 1)
    sealed(last, b"x")
    for _ in range(2):
        with pytest.raises(TransportError, match="numbers of this connection are used"):
            sealed(last, b"x")
        with pytest.raises(TransportError, match="numbers of this connection are used"):
            last.clear_prefix(5)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(TransportError) as error:
        seal.check_cryptography()
    assert "pip install 'paceline[hosts]'" in str(error.value)


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.ciphers import aead

    monkeypatch.setattr(aead, "AESGCM", bytes)
    with pytest.raises(TransportError, match="older than 47"):
        seal.check_cryptography()
