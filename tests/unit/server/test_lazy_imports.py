"""Imports of a server: torch's optimizers import a compiler, which takes longer than the rest of the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.real_runs import python

CODE = """
import sys
import torch
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.server.service import ServerService
from paceline.types import Commit, Fence, Kind, ModelSpec, OptimizerSpec, TensorSpec

hyper = (HYPER,)
spec = ModelSpec((TensorSpec("w", (64,), "float32", Kind.PARAMETER, 0),), OptimizerSpec("NAME", hyper), None, True)
store = DenseStore()
store.open(spec, cut(spec.tensors))
for version, step in enumerate((-1, 0)):
    store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), {0: memoryview(bytearray(256))}))
    store.apply(SumKey(step, None), Commit(0, version, step, (Fence(1, 1),), hyper, 1.0, False, 0, 0))
print("LOADED", "torch._dynamo" in sys.modules)
"""
SGD = (
    '{"lr": 0.1, "momentum": 0.9, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False, '
    '"foreach": None, "differentiable": False, "fused": None}'
)
RMSPROP = (
    '{"lr": 0.1, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False, '
    '"capturable": False, "foreach": None, "maximize": False, "differentiable": False}'
)


@pytest.mark.parametrize(("name", "hyper", "loaded"), [("SGD", SGD, False), ("RMSprop", RMSPROP, True)])
def test_the_compiler_is_imported_only_for_an_optimizer_that_needs_it(
    name: str, hyper: str, loaded: bool, tmp_path: Path
) -> None:
    code = CODE.replace("HYPER", hyper).replace("NAME", name)
    assert f"LOADED {loaded}" in python("-c", code, cwd=tmp_path).check().out
