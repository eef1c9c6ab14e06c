"""The Open Inference Protocol, version 2: requests and responses as bytes, with the binary tensor extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from paceline.core.predict.signature import (
    DATATYPES,
    ITEM_NBYTES,
    Given,
    Signature,
    TensorSignature,
    check_inputs,
    check_outputs,
)
from paceline.errors import RequestError
from paceline.predict.arrays import NUMPY, Arrays

HEADER_LENGTH = "inference-header-content-length"
JSON, BINARY = "application/json", "application/octet-stream"

_MOST_DIMENSIONS = 16
_MOST_TENSORS = 256
_INTEGERS = frozenset(name for name in DATATYPES if name.startswith(("INT", "UINT")))
_FLOATS = frozenset(("FP16", "FP32", "FP64"))

Parameters = dict[str, Any]


class _Input(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: Parameters = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: Parameters = {}


class _Body(msgspec.Struct):
    inputs: tuple[_Input, ...]
    id: str = ""
    parameters: Parameters = {}
    outputs: tuple[_Output, ...] = ()


class InferRequest(msgspec.Struct, frozen=True):
    """A request that fits the signature: its arrays and rows, and which outputs it wants, each binary or not."""

    id: str
    inputs: dict[str, Any]
    rows: int
    outputs: tuple[tuple[str, bool], ...]

    @property
    def kind(self) -> tuple[tuple[int, ...], ...]:
        """What requests must have in common to be computed together: the shapes of their rows."""
        return tuple(array.shape[1:] for array in self.inputs.values())


_DECODE_BODY = msgspec.json.Decoder(_Body)
_DECODE_FLOATS = msgspec.json.Decoder(list[float])
_DECODE_INTS = msgspec.json.Decoder(list[int])


def decode_request(
    body: bytes, header_length: str | None, signature: Signature, *, max_rows: int, max_nbytes: int
) -> InferRequest:
    """Decode and check a request. `header_length` is the header of the binary extension.

    Nothing is allocated for a tensor before its size is known to be allowed.

    Raises:
        RequestError: the request is malformed, does not fit the signature, or is too large; nothing of it is kept.
    """
    head, rest = _split(body, header_length)
    try:
        document = _DECODE_BODY.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"the request is not an inference request in JSON: {error}") from None
    if len(document.inputs) > _MOST_TENSORS or len(document.outputs) > _MOST_TENSORS:
        raise RequestError(400, f"a request has at most {_MOST_TENSORS} inputs and outputs")
    given = [_given(one) for one in document.inputs]
    rows = check_inputs(signature, given, max_rows=max_rows, max_nbytes=max_nbytes)
    check_outputs(signature, [one.name for one in document.outputs])
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    used = 0
    for one, spec in zip(document.inputs, given, strict=True):
        nbytes = _binary_size(one)
        if nbytes is None:
            array = _from_json(one, spec)
        else:
            array = _from_binary(spec, rest[used : used + nbytes], nbytes)
            used += nbytes
        if spec.datatype in _FLOATS and not np.isfinite(array).all():
            raise RequestError(400, f"input {spec.name!r} has values that are not finite (nan or inf)")
        arrays[spec.name] = array
    if used != len(rest):
        raise RequestError(400, f"the body has {len(rest)} bytes behind its JSON; the inputs declare {used}")
    inputs = {spec.name: arrays[spec.name] for spec in signature.inputs}
    return InferRequest(document.id, inputs, rows, _wanted(document, signature))


def _split(body: bytes, header_length: str | None) -> tuple[memoryview, memoryview]:
    view = memoryview(body)
    if header_length is None:
        return view, view[len(view) :]
    if not (header_length.isascii() and header_length.isdecimal()) or int(header_length) > len(body):
        raise RequestError(
            400, f"Inference-Header-Content-Length is {header_length[:20]!r}; the body has {len(body)} bytes"
        )
    return view[: int(header_length)], view[int(header_length) :]


def _given(one: _Input) -> Given:
    if len(one.shape) > _MOST_DIMENSIONS or any(not 0 <= dim < 1 << 40 for dim in one.shape):
        raise RequestError(400, f"input {one.name[:80]!r} has a shape that no tensor has")
    if one.datatype not in ITEM_NBYTES:
        raise RequestError(400, f"input {one.name[:80]!r} has datatype {one.datatype[:20]!r}, which is not known")
    return Given(one.name, one.datatype, one.shape)


def _binary_size(one: _Input) -> int | None:
    size = one.parameters.get("binary_data_size")
    if size is None:
        return None
    if one.data is not msgspec.UNSET:
        raise RequestError(400, f"input {one.name!r} has both data and binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise RequestError(400, f"input {one.name!r} has binary_data_size {str(size)[:20]}, which is no size")
    return size


def _from_binary(spec: Given, content: memoryview, nbytes: int) -> np.ndarray[Any, Any]:
    if nbytes != spec.nbytes:
        raise RequestError(400, f"input {spec.name!r} has {nbytes} bytes; its shape and datatype have {spec.nbytes}")
    if len(content) != nbytes:
        raise RequestError(400, f"the body is cut off in input {spec.name!r}: {len(content)} of {nbytes} bytes")
    if spec.datatype == "BOOL" and bytes(content).strip(b"\0\1"):
        raise RequestError(400, f"input {spec.name!r} has a byte that is no BOOL (0 or 1)")
    return np.frombuffer(content, NUMPY[spec.datatype]).reshape(spec.shape)


def _from_json(one: _Input, spec: Given) -> np.ndarray[Any, Any]:
    if one.data is msgspec.UNSET:
        raise RequestError(400, f"input {spec.name!r} has no data")
    if spec.datatype == "BF16":
        raise RequestError(400, f"input {spec.name!r} is BF16, which JSON cannot carry: send it as binary data")
    raw = bytes(one.data)
    if len(raw) < spec.numel:  # each element takes a byte or more
        raise RequestError(400, f"input {spec.name!r} has fewer elements than its shape {list(spec.shape)}")
    try:
        array = _parsed(raw, spec)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        raise RequestError(
            400, f"the data of input {spec.name!r} are not {spec.datatype} in a list, flat or nested"
        ) from None
    if array.size != spec.numel or array.shape not in (spec.shape, (spec.numel,)):
        raise RequestError(
            400, f"input {spec.name!r} has data of shape {list(array.shape)}; it declares {list(spec.shape)}"
        )
    return array.reshape(spec.shape)


def _parsed(raw: bytes, spec: Given) -> np.ndarray[Any, Any]:
    dtype = NUMPY[spec.datatype]
    if raw.count(b"[") == 1:  # a flat list, which is decoded with its types
        if spec.datatype in _FLOATS:
            with np.errstate(over="ignore"):
                return np.array(_DECODE_FLOATS.decode(raw), dtype)
        if spec.datatype in _INTEGERS:
            return np.array(_DECODE_INTS.decode(raw), dtype)
    content = msgspec.json.decode(raw)
    if not isinstance(content, list):
        raise ValueError
    array = np.array(content)
    kinds = {"BOOL": "b"}.get(spec.datatype, "iu" if spec.datatype in _INTEGERS else "iuf")
    if array.size and array.dtype.kind not in kinds:
        raise ValueError
    if spec.datatype in _INTEGERS and array.size:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise OverflowError
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _wanted(document: _Body, signature: Signature) -> tuple[tuple[str, bool], ...]:
    default = bool(document.parameters.get("binary_data_output", False))
    for one in document.outputs:
        if "classification" in one.parameters:
            raise RequestError(400, "the classification extension is not supported: ask for the output itself")
    if document.outputs:
        return tuple((one.name, bool(one.parameters.get("binary_data", default))) for one in document.outputs)
    return tuple((spec.name, default) for spec in signature.outputs)


# ------------------------------------------------------------------ responses


def encode_response(
    request: InferRequest, signature: Signature, outputs: Arrays, *, model: str, version: str, parameters: Parameters
) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON if binary tensors follow.

    Raises:
        RequestError: status 500: an output that JSON cannot carry, because it is not finite or BF16.
    """
    specs = {spec.name: spec for spec in signature.outputs}
    listed: list[dict[str, Any]] = []
    contents: list[bytes] = []
    for name, binary in request.outputs:
        array, spec = outputs[name], specs[name]
        entry: dict[str, Any] = {"name": name, "datatype": spec.datatype, "shape": array.shape}
        if binary:
            content = np.ascontiguousarray(array).tobytes()
            entry["parameters"] = {"binary_data_size": len(content)}
            contents.append(content)
        else:
            entry["data"] = _as_json(spec, array)
        listed.append(entry)
    document: dict[str, Any] = {
        "model_name": model,
        "model_version": version,
        "parameters": parameters,
        "outputs": listed,
    }
    if request.id:
        document["id"] = request.id
    head = msgspec.json.encode(document)
    return (b"".join((head, *contents)), len(head)) if contents else (head, None)


def _as_json(spec: TensorSignature, array: np.ndarray[Any, Any]) -> Sequence[Any]:
    if spec.datatype == "BF16":
        raise RequestError(500, f"output {spec.name!r} is BF16, which JSON cannot carry: ask for binary data")
    if spec.datatype in _FLOATS and not np.isfinite(array).all():
        raise RequestError(
            500, f"output {spec.name!r} is not finite (nan or inf), which JSON cannot carry: ask for binary data"
        )
    values: list[Any] = array.ravel().tolist()
    return values


def error_body(why: str) -> bytes:
    """The protocol's error object."""
    return msgspec.json.encode({"error": why})


def metadata(name: str, versions: Sequence[str], platform: str, signature: Signature) -> Mapping[str, Any]:
    """The metadata of a model."""
    return {
        "name": name,
        "versions": list(versions),
        "platform": platform,
        "inputs": [msgspec.to_builtins(spec) for spec in signature.inputs],
        "outputs": [msgspec.to_builtins(spec) for spec in signature.outputs],
    }
