"""A server that answers is a server that has loaded what it needs."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster import python

CODE = """
import sys
import torch
from paceline.server.optimizers import PieceOptimizer, warm_up
from paceline.types import OptimizerSpec

warm_up()
loaded = set(sys.modules)
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
    hyper = ({k: v for k, v in kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1).defaults.items()},)
    weights = [torch.zeros(64)]
    PieceOptimizer(OptimizerSpec(kind.__name__, hyper), [0], weights).step(hyper, weights, [torch.ones(64)])
late = sorted(set(sys.modules) - loaded)
assert not late, late
"""


def test_nothing_is_loaded_while_others_wait(tmp_path: Path) -> None:
    python("-c", CODE, cwd=tmp_path).check()
