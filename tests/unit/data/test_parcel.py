"""A batch as typed values: what cannot be expressed is said, and what a peer may not claim is refused."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from paceline.data.parcel import Parcel, Unfit, pack, unpack
from paceline.errors import RefusedFrameError
from paceline.messages import SlotPrepared
from paceline.messages.samplers import DictNode, TensorLeaf
from paceline.wire.frames import check_message
from paceline.wire.headers import decode_header, encode_header

TENSOR = torch.arange(24.0).view(2, 3, 4)
Pair = collections.namedtuple("Pair", "x y")
FIT = {
    "nested": {"a": [TENSOR, (1, 2.5, "text", None, True)], 3: {}},
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "turned": TENSOR.transpose(0, 2),
    "empty": [torch.zeros(0, 3), torch.zeros(())],
    "half": torch.rand(5).bfloat16(),
    "flags": torch.arange(7) % 2 == 0,
    "large": torch.arange(300_000),
    "a part": torch.arange(100)[40:60],
}
UNFIT = {
    "a set": {1, 2},
    "a named tuple": Pair(TENSOR, 1),
    "a subclass": torch.nn.Parameter(TENSOR),
    "gradients": torch.ones(2, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "gaps": torch.arange(10)[::2],
    "expanded": torch.ones(1).expand(5),
    "twice": [TENSOR, TENSOR],
    "complex": torch.zeros(2, dtype=torch.complex64),
    "a large number": 2**70,
    "keys": {(1, 2): 3},
}


def packed(batch: Any) -> Parcel:
    found = pack(batch, lambda nbytes: memoryview(bytearray(nbytes)))
    assert isinstance(found, Parcel)
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and (one.dtype, one.stride()) == (other.dtype, other.stride())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("name", FIT)
def test_a_batch_arrives_with_all_its_bits_and_its_layout(name: str) -> None:
    parcel = packed(FIT[name])
    message = SlotPrepared(1, parcel.structure, parcel.blocks)
    arrived = decode_header(encode_header(message))
    assert arrived == message
    check_message(arrived, parcel.frames)
    for allocate in (None, lambda nbytes: memoryview(bytearray(nbytes))):
        assert same(unpack(message.structure, message.blocks, parcel.frames, allocate), FIT[name])


@pytest.mark.parametrize("name", UNFIT)
def test_a_batch_that_cannot_be_expressed_says_why(name: str) -> None:
    found = pack(UNFIT[name], lambda nbytes: memoryview(bytearray(nbytes)))
    assert isinstance(found, Unfit)
    assert found.reason.startswith("it ")


CLAIMS: dict[str, dict[str, Any]] = {
    "another shape": {"shape": (2, 3, 5)},
    "a negative dimension": {"shape": (-2, -3, 4)},
    "more frames": {"frames": 2},
    "a frame that is not there": {"first": 1},
    "a negative frame": {"first": -1},
    "another dtype": {"dtype": "int64"},
    "an unknown dtype": {"dtype": "object"},
    "strides beyond the frame": {"strides": (12, 4, 2)},
    "a stride of zero": {"strides": (0, 4, 1)},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_structure_that_does_not_fit_its_frames_is_refused(claim: str) -> None:
    parcel = packed(TENSOR)
    assert isinstance(parcel.structure, TensorLeaf)
    with pytest.raises(RefusedFrameError):
        unpack(replace(parcel.structure, **CLAIMS[claim]), parcel.blocks, parcel.frames)


def test_a_dict_with_too_many_keys_is_refused() -> None:
    with pytest.raises(RefusedFrameError, match="2 keys for 0 values"):
        unpack(DictNode(("a", "b"), ()), (), ())
