"""Headers: bytes that are not exactly one known message are refused by name."""

from __future__ import annotations

import random
import struct
import tracemalloc

import msgspec
import pytest
from tests.kit.damage import mutate

from paceline import messages
from paceline.errors import RefusedFrameError
from paceline.messages import (
    Beat,
    BlockFrame,
    Committed,
    Message,
    Ok,
    Prepare,
    Prepared,
    PullReply,
    Push,
    Register,
    Seal,
    Turn,
)
from paceline.types import Commit, Fence, Kind, ModelSpec, OptimizerSpec, Placement, TensorSpec
from paceline.wire.frames import check_message
from paceline.wire.headers import decode_header, encode_header

SAMPLES: list[Message] = [
    Ok(1),
    Register(1, "worker", "worker-0", 42, "host-a", None, messages.JobArgs(7, "bsp", 4, 1)),
    Turn(5, 0, 0, messages.Sealed(3, 1, Fence(1, 9), 1.0, ({"lr": 0.1},), {"loss": 2.5}, 0.01)),
    Push(6, 0, 1, 3, 1, Fence(1, 9), 2, (BlockFrame(0, "float32", 4), BlockFrame(1, "bfloat16", 2, 1)), None),
    Push(7, 0, 1, 3, 1, Fence(1, 9), 2, (), Seal(1.0, (2,), ((0, 1),))),
    PullReply(8, 0, 3, 3, (BlockFrame(0, "float32", 4),)),
    Prepare(9, ModelSpec((TensorSpec("w", (3, 4), "float32", Kind.PARAMETER, 0),), OptimizerSpec("SGD", ()))),
    Prepared(9, 1, 0, Placement(1, ("server-0/1",), {"server-0/1": "tcp://127.0.0.1:5000"})),
    Committed(1, 1, Commit(0, 4, 3, (Fence(1, 9),), (), 1.0, False, 0, 0)),
    Beat("worker-0/1"),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_a_decoded_message_equals_the_encoded_one(message: Message) -> None:
    assert decode_header(encode_header(message)) == message


def test_every_message_type_has_its_own_tag() -> None:
    kinds = messages.AnyMessage.__args__
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
    assert set(kinds) == set(Message.__subclasses__()), "every message can be decoded"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x00",
        b"hello",
        encode_header(Ok(1)) + b"\x00",
        encode_header(Ok(1))[:-1],
        msgspec.msgpack.encode(["NoSuchMessage", 1]),
        msgspec.msgpack.encode(["Ok", "one"]),
        msgspec.msgpack.encode(["Ok", True]),
        msgspec.msgpack.encode(["Ok", 1.5]),
        msgspec.msgpack.encode(["Push", 1]),
        msgspec.msgpack.encode({"type": "Ok", "req": 1}),
        b"\x93" + encode_header(Ok(1))[1:] + b"\x91" * 100_000 + b"\xc0",
    ],
    ids=lambda header: header[:12].hex() or "empty",
)
def test_header_check_refuses_bytes_that_are_no_message(header: bytes) -> None:
    with pytest.raises(RefusedFrameError) as refused:
        decode_header(header)
    assert refused.value.rule == "header"


def test_header_check_refuses_a_header_above_its_limit() -> None:
    status = messages.StatusReply(1, bytes(1000))
    message = encode_header(status)
    assert decode_header(message, max_nbytes=len(message)) == status
    with pytest.raises(RefusedFrameError) as refused:
        decode_header(message, max_nbytes=len(message) - 1)
    assert refused.value.rule == "header-size"


@pytest.mark.parametrize("claimed", [1 << 16, 1 << 24, (1 << 32) - 1])
def test_header_check_allocates_nothing_for_a_claimed_length(claimed: int) -> None:
    push = encode_header(SAMPLES[3])
    blocks_at = push.index(b"\x92\x95")
    bomb = push[:blocks_at] + b"\xdd" + struct.pack(">I", claimed) + push[blocks_at + 1 :]
    tracemalloc.start()
    with pytest.raises(RefusedFrameError):
        decode_header(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_forty_thousand_mutated_headers_are_decoded_or_refused() -> None:
    rng = random.Random(20_240)
    headers = [encode_header(message) for message in SAMPLES]
    frames = [memoryview(bytes(16)), memoryview(bytes(4))]
    outcomes: dict[str, int] = {}
    for _ in range(40_000):
        try:
            message = decode_header(mutate(rng.choice(headers), rng))
            check_message(message, frames[: rng.randrange(3)])
            outcome = "accepted"
        except RefusedFrameError as error:
            outcome = error.rule
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert sum(outcomes.values()) == 40_000
    # The mutations reach the checks behind the decoder, too, and some are harmless.
    assert {"accepted", "header", "frame-count", "frame-size"} <= outcomes.keys()
