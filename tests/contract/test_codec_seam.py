"""The seam for codecs: a new codec is one class and one entry in `CODECS`; roles receive its frames decoded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from tests.contract.port_contract import Events, PortFactory
from tests.contract.test_ports import InprocPorts, ZmqPorts

from paceline.errors import RefusedFrameError
from paceline.messages import BlockFrame, Push, Refused
from paceline.transport.base import Port
from paceline.types import Fence
from paceline.wire import codecs
from paceline.wire.codecs import CODECS, Codec, decode, decode_frames, decoded_nbytes
from paceline.wire.frames import WireLimits, check_frames


class RunLength:
    """A dummy codec: pairs of (count, byte)."""

    def fits(self, numel: int, item_nbytes: int, encoded_nbytes: int) -> bool:
        return encoded_nbytes % 2 == 0 and encoded_nbytes <= 2 * numel * item_nbytes <= 255 * encoded_nbytes

    def encode(self, dtype: str, content: memoryview) -> memoryview:
        runs = [(value, len(list(same))) for value, same in itertools.groupby(content.cast("B"))]
        assert all(count < 256 for _, count in runs)
        return memoryview(b"".join(bytes((count, value)) for value, count in runs))

    def decode(self, dtype: str, numel: int, frame: memoryview) -> memoryview:
        content = bytearray()
        for at in range(0, frame.nbytes, 2):
            content += bytes((frame[at + 1],)) * frame[at]
        return memoryview(content)


@pytest.fixture(autouse=True)
def run_length(monkeypatch: pytest.MonkeyPatch) -> Codec:
    codec = RunLength()
    monkeypatch.setitem(CODECS, "run-length", codec)
    return codec


CONTENT = memoryview(bytearray(b"\1" * 100 + b"\2" * 100 + b"\0" * 56))
DECLARED = BlockFrame(3, "float32", 64, codec="run-length")


def push(req: int, *blocks: BlockFrame) -> Push:
    return Push(req, 0, 0, 0, 0, Fence(1, 1), 0, blocks)


@pytest.fixture(params=[InprocPorts, lambda: InprocPorts(strict=True), ZmqPorts, lambda: ZmqPorts(local=True)])
def ports(request: pytest.FixtureRequest) -> Iterator[PortFactory]:
    make: Callable[[], PortFactory] = request.param
    ports = make()
    yield ports
    ports.close()


@pytest.fixture
def pair(ports: PortFactory) -> tuple[Port, Port, Events]:
    server, client = ports.port("server/1", at=ports.free_address()), ports.port("worker/1")
    assert server.address is not None
    client.connect(server.address)
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    return server, client, events


def test_a_role_receives_the_decoded_elements_on_every_lane(pair: tuple[Port, Port, Events], run_length: Codec) -> None:
    server, client, events = pair
    encoded = run_length.encode("float32", CONTENT)
    assert encoded.nbytes < CONTENT.nbytes
    raw = BlockFrame(4, "uint8", CONTENT.nbytes)
    client.send("server/1", push(1, DECLARED, raw), [encoded, CONTENT])
    events.until(lambda: bool(events.received(server)))
    frames = events.received(server)[0].frames
    assert [bytes(frame) for frame in frames] == [bytes(CONTENT)] * 2


def test_a_frame_that_does_not_decode_to_its_declared_size_is_refused(pair: tuple[Port, Port, Events]) -> None:
    server, client, events = pair
    client.send("server/1", push(1, DECLARED), [memoryview(bytes((200, 1, 57, 0)))])
    events.until(lambda: bool(events.received(client)))
    refused = events.received(client)[0].message
    assert isinstance(refused, Refused)
    assert (refused.req, refused.rule) == (1, "codec")
    assert server.counters.refused == {"codec": 1}


def test_an_unknown_codec_is_refused_with_its_name_and_the_known_ones() -> None:
    with pytest.raises(RefusedFrameError, match=r"'pickle' of block 0 is not one of raw, run-length") as refused:
        decoded_nbytes(BlockFrame(0, "float32", 4, codec="pickle"), 16)
    assert refused.value.rule == "codec"


def test_sizes_are_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunLength, "decode", lambda *_: pytest.fail("decoded"))
    assert decoded_nbytes(DECLARED, 6) == 256
    with pytest.raises(RefusedFrameError, match="frame-size"):
        decoded_nbytes(DECLARED, 7)
    bomb = BlockFrame(0, "float32", 1 << 40, codec="run-length")
    with pytest.raises(RefusedFrameError, match="frame-size"):
        check_frames([bomb], [memoryview(bytes(64))])
    with pytest.raises(RefusedFrameError, match="frame-cap"):
        check_frames([DECLARED], [memoryview(bytes(6))], WireLimits(max_frame_nbytes=255))
    with pytest.raises(RefusedFrameError, match="message-cap"):
        check_frames([DECLARED], [memoryview(bytes(6))], WireLimits(max_message_nbytes=255))


def test_raw_frames_are_passed_on_without_a_copy() -> None:
    frames = [memoryview(bytearray(16)), memoryview(bytearray(4))]
    blocks = [BlockFrame(0, "float32", 4), BlockFrame(1, "uint8", 4)]
    assert decode_frames(blocks, frames) is frames
    assert decode(blocks[0], frames[0]) is frames[0]
    assert CODECS[codecs.RAW].encode("uint8", frames[1]) is frames[1]
