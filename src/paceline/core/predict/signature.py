"""The signature of a model: the names, datatypes and shapes of its inputs and outputs, and the check of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec

from paceline.errors import RequestError

DATATYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The datatypes of the Open Inference Protocol that a model may have, each with torch's name."""

DATATYPE_OF: Mapping[str, str] = {dtype: datatype for datatype, dtype in DATATYPES.items()}

ITEM_NBYTES: Mapping[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}

ANY = -1
"""A dimension of any size."""


class TensorSignature(msgspec.Struct, frozen=True):
    """One input or output. A dimension of -1 may have any size; in a batched model the first is the number of rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Signature(msgspec.Struct, frozen=True):
    """The inputs and outputs of a model.

    In a `batched` model the first dimension of every input and output counts rows that do not depend on each other, so
    requests may be computed together.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    batched: bool = True


class Given(msgspec.Struct, frozen=True):
    """What a request says of one input before its content is read."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the decoded tensor."""
        return self.numel * ITEM_NBYTES[self.datatype]


def check_inputs(signature: Signature, given: Sequence[Given], *, max_rows: int, max_nbytes: int) -> int:
    """Check what a request says of its inputs; returns its rows (1 if the model is not batched). Allocates nothing.

    Raises:
        RequestError: an input is missing, unknown, given twice, or of another datatype or shape; or it is too large.
    """
    wanted = {spec.name: spec for spec in signature.inputs}
    names = ", ".join(wanted)
    seen: set[str] = set()
    rows: int | None = None
    nbytes = 0
    for one in given:
        spec = wanted.get(one.name)
        if spec is None:
            raise RequestError(400, f"the model has no input {one.name[:80]!r}; its inputs are: {names}")
        if one.name in seen:
            raise RequestError(400, f"input {one.name!r} is given twice")
        seen.add(one.name)
        if one.datatype != spec.datatype:
            raise RequestError(
                400, f"input {one.name!r} has datatype {one.datatype[:20]!r}; it must be {spec.datatype}"
            )
        _check_shape(spec, one.shape)
        nbytes += one.nbytes
        if nbytes > max_nbytes:
            raise RequestError(413, f"the inputs have more than {max_nbytes} bytes once decoded, which is the limit")
        if signature.batched:
            if rows is not None and one.shape[0] != rows:
                raise RequestError(400, f"input {one.name!r} has {one.shape[0]} rows, another input has {rows}")
            rows = one.shape[0]
    if missing := [name for name in wanted if name not in seen]:
        raise RequestError(400, f"input {missing[0]!r} is missing; the inputs are: {names}")
    if rows is None:
        return 1
    if rows < 1:
        raise RequestError(400, "the request has no rows: the first dimension of the inputs is 0")
    if rows > max_rows:
        raise RequestError(413, f"the request has {rows} rows; at most {max_rows} go in one request: send several")
    return rows


def _check_shape(spec: TensorSignature, shape: tuple[int, ...]) -> None:
    fits = len(shape) == len(spec.shape) and all(
        have >= 0 and want in (ANY, have) for have, want in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        said = list(shape[:8]) if len(shape) <= 8 else f"{len(shape)} dimensions"
        raise RequestError(400, f"input {spec.name!r} has shape {said}; it must be {list(spec.shape)} (-1: any size)")


def check_outputs(signature: Signature, names: Sequence[str]) -> None:
    """Check the outputs that a request asks for.

    Raises:
        RequestError: the model has no such output, or one is asked for twice.
    """
    known = [spec.name for spec in signature.outputs]
    for number, name in enumerate(names):
        if name not in known:
            raise RequestError(400, f"the model has no output {name[:80]!r}; its outputs are: {', '.join(known)}")
        if name in names[:number]:
            raise RequestError(400, f"output {name!r} is asked for twice")
