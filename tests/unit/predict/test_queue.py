from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from paceline.core.predict.batching import BatchLimits
from paceline.core.predict.signature import Signature, TensorSignature
from paceline.errors import RequestError
from paceline.predict.arrays import Arrays
from paceline.predict.models import Loaded, Model
from paceline.predict.protocol import InferRequest
from paceline.predict.queue import Answer, ModelQueue

SIGNATURE = Signature((TensorSignature("x", "FP32", (-1, 1)),), (TensorSignature("y", "FP32", (-1,)),))


class Twice:
    """Adds its own number to twice the input; waits at a gate; raises for negative numbers."""

    platform, signature = "test", SIGNATURE

    def __init__(self, number: float = 0.0) -> None:
        self.number = number
        self.gate = threading.Event()
        self.gate.set()

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        assert self.gate.wait(5.0)
        if (inputs["x"] < 0).any():
            raise IndexError("negative")
        return {"y": 2 * inputs["x"][:, 0] + self.number}


def request(*values: float) -> InferRequest:
    return InferRequest("", {"x": np.array(values, np.float32)[:, None]}, len(values), (("y", False),))


def asked(runner: Twice, requests: Sequence[InferRequest], **limits: Any) -> tuple[list[Any], list[int]]:
    batches: list[int] = []

    async def ask() -> list[Answer | BaseException]:
        with ThreadPoolExecutor(1) as executor:
            model = Model("m")
            model.add(Loaded(runner, "1", version=1))
            queue = ModelQueue(model, BatchLimits(**limits), executor, lambda rows, seconds: batches.append(rows))
            return await asyncio.gather(*(queue.ask(one, "") for one in requests), return_exceptions=True)

    return asyncio.run(ask()), batches


def test_requests_that_come_together_are_computed_together_and_get_their_own_rows() -> None:
    answers, batches = asked(Twice(), [request(1, 2), request(3), request(4, 5, 6)])
    assert [list(a.outputs["y"]) for a in answers] == [[2, 4], [6], [8, 10, 12]]
    assert batches == [6]


def test_a_request_on_which_the_model_raises_does_not_fail_the_others() -> None:
    answers, _ = asked(Twice(), [request(1), request(-1), request(2)])
    assert list(answers[0].outputs["y"]) == [2]
    assert list(answers[2].outputs["y"]) == [4]
    assert isinstance(answers[1], RequestError)
    assert (answers[1].status, "IndexError: negative" in answers[1].why) == (400, True)


def test_a_full_queue_refuses_and_a_late_request_gets_an_error() -> None:
    runner = Twice()
    runner.gate.clear()
    threading.Timer(0.2, runner.gate.set).start()
    answers, _ = asked(runner, [request(1)] * 6, max_rows=2, max_queued_rows=4, deadline_s=0.1)
    statuses = [a.status if isinstance(a, RequestError) else 200 for a in answers]
    assert statuses == [200, 200, 503, 503, 429, 429]


def test_a_swap_never_mixes_versions_and_a_retired_version_computes_no_more() -> None:
    one, two = Twice(100), Twice(200)
    model = Model("m")
    first, second = Loaded(one, "1", version=1), Loaded(two, "2", version=2)
    model.add(first)

    async def ask() -> list[Answer]:
        with ThreadPoolExecutor(1) as executor:
            queue = ModelQueue(model, BatchLimits(), executor, lambda rows, seconds: None)
            one.gate.clear()
            under_way = asyncio.ensure_future(queue.ask(request(0, 0), ""))
            await asyncio.sleep(0.05)
            model.replace(second)
            after = asyncio.ensure_future(queue.ask(request(0), ""))
            await asyncio.sleep(0.01)
            one.gate.set()
            return [await under_way, await after]

    before, after = asyncio.run(ask())
    first.retire()
    assert (list(before.outputs["y"]), before.loaded.version) == ([100, 100], 1)
    assert (list(after.outputs["y"]), after.loaded.version) == ([200], 2)
    assert first.compute(request(0).inputs) is None
    with pytest.raises(RequestError, match="no version '1'"):
        model.version("1")
