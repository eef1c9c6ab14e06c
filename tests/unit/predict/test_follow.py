from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from paceline.blocks.tensors import bytes_of
from paceline.core.layout import cut
from paceline.core.predict.reader import Fill, Restart, Whole
from paceline.core.predict.signature import Signature, TensorSignature
from paceline.errors import MismatchError
from paceline.messages import Following
from paceline.predict.follow import Follower, Weights
from paceline.predict.models import Model
from paceline.types import Kind, ModelSpec, OptimizerSpec, TensorSpec

NUMEL = 40_000


class Two(torch.nn.Module):
    """Two parameters, and a buffer of integers: each in blocks of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((NUMEL,), -1.0), requires_grad=False)
        self.b = torch.nn.Parameter(torch.full((4, 5), -1.0).t(), requires_grad=False)
        self.register_buffer("n", torch.tensor(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        told = torch.stack([self.a.min(), self.a.max(), self.b.min(), self.b.max(), self.get_buffer("n").float()])
        return x + told


TENSORS = (
    TensorSpec("a", (NUMEL,), "float32", Kind.PARAMETER, 0),
    TensorSpec("b", (5, 4), "float32", Kind.FROZEN),
    TensorSpec("n", (), "int64", Kind.LAST),
)
SPEC = ModelSpec(TENSORS, OptimizerSpec("SGD", ({},)))
BLOCKS = cut(TENSORS)
SIGNATURE = Signature((TensorSignature("x", "FP32", (-1, 5)),), (TensorSignature("output", "FP32", (-1, 5)),))


def content(block: int, value: int) -> memoryview:
    spec = BLOCKS[block]
    return bytes_of(torch.full((spec.numel,), value, dtype=torch.int64 if spec.dtype == "int64" else torch.float32))


class Driver:
    """A follower without its thread: outputs of the reader are carried out one by one."""

    def __init__(self) -> None:
        self.model = Model("m")
        self.follower = Follower(self.model, Two, SIGNATURE, lambda: pytest.fail("no port"), lambda: None)
        self.follower._reader.following = Following(1, 1, 0, 0, 0.0, None, SPEC)

    def read(self, version: int, blocks: Any) -> None:
        blocks = tuple(blocks)
        frames = [content(block, version) for block in blocks]
        outputs = [Fill(blocks), Whole(0, version, 0.0)]
        self.follower._carry_out(None, None, outputs, frames)  # type: ignore[arg-type]

    def told(self) -> list[float]:
        import numpy as np

        outputs = self.model.current.compute({"x": np.zeros((1, 5), np.float32)})
        assert outputs is not None
        return [float(value) for value in outputs["output"][0]]


def test_blocks_that_did_not_change_are_those_of_the_version_before() -> None:
    driver = Driver()
    of_a = [b.index for b in BLOCKS if b.pieces[0].tensor == 0]
    driver.read(3, range(len(BLOCKS)))
    assert driver.told() == [3, 3, 3, 3, 3]
    driver.read(4, of_a)
    assert driver.told() == [4, 4, 3, 3, 3]
    driver.read(5, of_a)
    assert driver.told() == [5, 5, 3, 3, 3]
    driver.read(6, [])
    assert (driver.told(), driver.model.current.version) == ([5, 5, 3, 3, 3], 6)


def test_what_came_of_a_read_that_was_given_up_does_not_count() -> None:
    driver = Driver()
    driver.read(3, range(len(BLOCKS)))
    driver.follower._carry_out(None, None, [Fill((0,)), Restart()], [content(0, 9)])  # type: ignore[arg-type]
    driver.read(4, [b.index for b in BLOCKS if b.index > 0])
    assert driver.told()[0] == 3
    assert driver.told()[2:] == [4, 4, 4]


def test_a_version_is_not_written_while_a_batch_computes_with_it() -> None:
    driver = Driver()
    driver.read(3, range(len(BLOCKS)))
    old = driver.model.current
    old._lock.acquire()  # a batch computes
    swapping = threading.Thread(target=driver.read, args=(4, range(len(BLOCKS))))
    swapping.start()
    try:
        swapping.join(0.1)
        assert swapping.is_alive()
        assert driver.model.current.version == 4
    finally:
        old._lock.release()
        swapping.join(5.0)
    assert driver.told() == [4, 4, 4, 4, 4]


def test_another_model_than_that_of_the_job_is_refused() -> None:
    with pytest.raises(MismatchError, match="which the job trained"):
        Weights(torch.nn.Linear(2, 2), SPEC)
