from __future__ import annotations

import pytest

from paceline.core.predict.signature import Given, Signature, TensorSignature, check_inputs, check_outputs
from paceline.errors import RequestError

IMAGE = Signature((TensorSignature("x", "FP32", (-1, 1, 28, 28)),), (TensorSignature("output", "FP32", (-1, 10)),))
PAIR = Signature(
    (TensorSignature("a", "FP32", (-1, 2)), TensorSignature("b", "INT64", (-1,))),
    (TensorSignature("p", "FP32", (-1,)), TensorSignature("q", "FP32", (-1,))),
)


def rows(signature: Signature, *given: Given) -> int:
    return check_inputs(signature, given, max_rows=100, max_nbytes=1 << 20)


def test_the_rows_are_the_first_dimension() -> None:
    assert rows(IMAGE, Given("x", "FP32", (5, 1, 28, 28))) == 5
    assert rows(PAIR, Given("b", "INT64", (3,)), Given("a", "FP32", (3, 2))) == 3
    whole = Signature((TensorSignature("x", "FP32", (4,)),), (), batched=False)
    assert rows(whole, Given("x", "FP32", (4,))) == 1


@pytest.mark.parametrize(
    ("given", "status", "why"),
    [
        ((), 400, "input 'a' is missing"),
        ((Given("z", "FP32", (1,)),), 400, "has no input 'z'; its inputs are: a, b"),
        ((Given("a", "FP32", (1, 2)), Given("a", "FP32", (1, 2))), 400, "given twice"),
        ((Given("a", "INT64", (1, 2)),), 400, "must be FP32"),
        ((Given("a", "FP32", (1, 3)),), 400, r"must be \[-1, 2\]"),
        ((Given("a", "FP32", (2,)),), 400, "has shape"),
        ((Given("a", "FP32", (-1, 2)),), 400, "has shape"),
        ((Given("a", "FP32", (1, 2)), Given("b", "INT64", (2,))), 400, "has 2 rows, another input has 1"),
        ((Given("a", "FP32", (0, 2)), Given("b", "INT64", (0,))), 400, "no rows"),
        ((Given("a", "FP32", (101, 2)), Given("b", "INT64", (101,))), 413, "at most 100"),
        ((Given("a", "FP32", (1 << 39, 2)),), 413, "bytes once decoded"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_name(given: tuple[Given, ...], status: int, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        rows(PAIR, *given)
    assert refused.value.status == status


def test_only_outputs_of_the_model_can_be_asked_for() -> None:
    check_outputs(PAIR, ["q"])
    for names in (["r"], ["q", "q"]):
        with pytest.raises(RequestError):
            check_outputs(PAIR, names)
