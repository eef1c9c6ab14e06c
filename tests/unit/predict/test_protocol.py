from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paceline.core.predict.signature import Signature, TensorSignature
from paceline.errors import RequestError
from paceline.predict.protocol import InferRequest, decode_request, encode_response

X = TensorSignature("x", "FP32", (-1, 2))
SIGNATURE = Signature((X,), (TensorSignature("y", "FP32", (-1,)), TensorSignature("z", "INT64", (-1,))))


def of(datatype: str) -> Signature:
    return Signature((TensorSignature("x", datatype, (-1, 2)),), SIGNATURE.outputs)


def decode(body: dict[str, Any] | bytes, tail: bytes = b"", signature: Signature = SIGNATURE) -> InferRequest:
    head = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = str(len(head)) if tail else None
    return decode_request(head + tail, length, signature, max_rows=100, max_nbytes=1 << 16)


def one(data: object, shape: tuple[int, ...] = (2, 2), datatype: str = "FP32", **more: object) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data, **more}]}


@pytest.mark.parametrize("data", [[1, 2, 3, 4.5], [[1, 2], [3, 4.5]]])
def test_data_are_flat_or_nested(data: object) -> None:
    request = decode(one(data))
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4.5]]
    assert (request.rows, request.outputs) == (2, (("y", False), ("z", False)))


@pytest.mark.parametrize(
    ("datatype", "data"), [("BOOL", [True, False]), ("UINT8", [0, 255]), ("INT64", [-(2**62), 1]), ("FP16", [0.5, 1])]
)
def test_each_datatype_is_read_from_json_and_from_bytes(datatype: str, data: list[Any]) -> None:
    array = decode(one(data, (1, 2), datatype), signature=of(datatype)).inputs["x"]
    one_input = {"name": "x", "shape": (1, 2), "datatype": datatype, "parameters": {"binary_data_size": array.nbytes}}
    head = {"inputs": [one_input]}
    again = decode(head, array.tobytes(), of(datatype)).inputs["x"]
    assert again.dtype == array.dtype
    assert again.tolist() == array.tolist() == [data]


BAD: list[tuple[object, str]] = [
    (b"", "not an inference request"),
    (b"{", "not an inference request"),
    (b"[]", "not an inference request"),
    (b'{"inputs": 3}', "not an inference request"),
    (b"\xff\xfe", "not an inference request"),
    ({"inputs": []}, "'x' is missing"),
    (one([1, 2, 3]), "fewer elements|data of shape"),
    (one([1, 2, 3, 4, 5]), "data of shape"),
    (one([[1, 2, 3, 4]]), "data of shape"),
    (one([[1, 2], [3]]), "are not FP32"),
    (one(["1", "2", "3", "4"]), "are not FP32"),
    (one([True, False, True, False]), "are not FP32"),
    (one([1, 2, 3, 1e39]), "not finite"),
    (one([1, 2, 3, None]), "are not FP32"),
    (one("abcdefgh"), "are not FP32"),
    (one({"a": 1, "b": 2}), "are not FP32"),
    (one([1, 2], (1, 2), "INT64"), "must be FP32"),
    (one([1, 2], (1, 2), "BYTES"), "not known"),
    (one([1, 2], (1 << 50, 2)), "no tensor has"),
    (one([1, 2], (90, 2)), "fewer elements"),
    (one([], (0, 2)), "no rows"),
    (one([1, 2], (1,) * 20), "no tensor has"),
    (one([1, 2], (1, 2), parameters={"binary_data_size": 8}), "both data and"),
    ({"inputs": [{"name": "x", "shape": (1, 2), "datatype": "FP32"}]}, "has no data"),
    ({**one([1, 2], (1, 2)), "outputs": [{"name": "nope"}]}, "no output 'nope'"),
    ({**one([1, 2], (1, 2)), "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification"),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]}]}', "not an inference request"),
    (
        b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
        "not an inference request|are not FP32",
    ),
]


@pytest.mark.parametrize(("body", "why"), BAD)
def test_a_bad_request_is_refused_with_the_reason(body: dict[str, Any] | bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        decode(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("data", [[1.5, 2], [256, 0], [-1, 0], [10**30, 0], [True, False], [[[1, 2]]]])
def test_integers_are_neither_rounded_nor_cut(data: object) -> None:
    with pytest.raises(RequestError) as refused:
        decode(one(data, (1, 2), "UINT8"), signature=of("UINT8"))
    assert refused.value.status == 400


def binary(size: int, tail: bytes, datatype: str = "FP32") -> None:
    head = {"inputs": [{"name": "x", "shape": (1, 2), "datatype": datatype, "parameters": {"binary_data_size": size}}]}
    decode(head, tail, of(datatype))


@pytest.mark.parametrize(
    ("size", "tail", "why"),
    [
        (8, b"1234567", "cut off"),
        (8, b"123456789", "9 bytes behind its JSON; the inputs declare 8"),
        (4, b"1234", "its shape and datatype have 8"),
        (-8, b"12345678", "no size"),
        (8, np.array([np.nan, 1], np.float32).tobytes(), "not finite"),
    ],
)
def test_bad_binary_data_are_refused(size: int, tail: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        binary(size, tail)
    with pytest.raises(RequestError, match="no BOOL"):
        binary(2, b"\x00\x02", "BOOL")
    for length in ("x", "-1", "99999"):
        with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
            decode_request(b"{}", length, SIGNATURE, max_rows=9, max_nbytes=99)


def test_a_response_has_json_or_bytes_as_asked() -> None:
    outputs = {"y": np.array([0.5], np.float32), "z": np.array([7])}
    asked = {
        **one([1, 2], (1, 2)),
        "id": "i",
        "outputs": [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}],
    }
    body, head = encode_response(decode(asked), SIGNATURE, outputs, model="m", version="3", parameters={"version": 3})
    assert head is not None
    document = json.loads(body[:head])
    assert body[head:] == np.array([7]).tobytes()
    assert document == {
        "model_name": "m",
        "model_version": "3",
        "parameters": {"version": 3},
        "id": "i",
        "outputs": [
            {"name": "z", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
            {"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5]},
        ],
    }
    plain = decode(one([1, 2], (1, 2)))
    with pytest.raises(RequestError, match="not finite"):
        encode_response(plain, SIGNATURE, {**outputs, "y": np.array([np.nan])}, model="m", version="3", parameters={})
