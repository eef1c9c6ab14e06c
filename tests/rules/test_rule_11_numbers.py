"""Rule 11, numbers: the gradient of a step is (Σ wᵢ·gᵢ) / Σ wᵢ in slot order.

Two slots of a step that disagree on hyper-parameters fail the job by name. Partial norms combine in block order. Blocks
are cut at multiples of 64 elements. The sums are in tests/unit/blocks/test_sums.py, and promise 2 compares whole runs
with plain PyTorch.

Upheld by:
- `core.server.attempts.Attempts.push`: slots are added in slot order
- `core.coordinator.gate.disagreement` and `core.coordinator.gate.clip_scale`
- `core.layout.cut`
"""

from __future__ import annotations

import pytest
from tests.kit.core import (
    CoordinatorKit,
    ServerKit,
    fence,
    segment,
    sent,
    written,
)

from paceline.core.coordinator.gate import clip_scale
from paceline.core.layout import cut
from paceline.messages import (
    Abort,
    Choose,
    Ready,
)
from paceline.types import Commit, Hyper, Kind, TensorSpec


@pytest.mark.parametrize("one_attempt", [False, True])
def test_slots_are_summed_in_slot_order(one_attempt: bool) -> None:
    server = ServerKit(segment(slots=3, data_len=60), one_attempt=one_attempt)
    for slot in (2, 0, 1):
        server.push(0, slot, 5 + slot)
    if one_attempt:
        for slot in (2, 0, 1):
            server.tell(Choose(1, 0, 1, 0, slot, fence(5 + slot)))
    assert server.slots_added(0) == ["5", "6", "7"]


def test_two_slots_of_a_step_that_disagree_on_hyper_parameters_fail_the_job() -> None:
    job = CoordinatorKit().start().initialise()
    grants = [job.lease(w) for w in job.workers]
    other: Hyper = ({"lr": 0.2},)
    job.seal("worker-0", grants[0])
    job.seal("worker-1", grants[1], hyper=other)
    effects = job.ready("server-0", 0, *(g.fence for g in grants))
    assert written(effects, Commit) == []
    (abort, *_) = sent(effects, Abort)
    assert "slots 0 and 1 of step 0 disagree" in abort.reason
    assert "0.2" in abort.reason


def test_partial_norms_combine_in_block_order() -> None:
    """Floating-point sums depend on the order; the servers may report in any order."""
    large = Ready(0, 1, 0, (), 0, 0, ((0, 1e16),))
    small = Ready(0, 1, 0, (), 0, 0, tuple((block, 1.0) for block in range(1, 101)))
    assert clip_scale((large, small), 1.0) == clip_scale((small, large), 1.0) == pytest.approx(1e-8)
    assert clip_scale((large, small), None) == 1.0


@pytest.mark.parametrize("numel", [1, 64, 100_000, 1_000_003])
def test_blocks_are_cut_at_multiples_of_64_elements(numel: int) -> None:
    tensor = TensorSpec("weight", (numel,), "float32", Kind.PARAMETER, 0)
    pieces = [piece for block in cut((tensor,)) for piece in block.pieces]
    assert all(piece.start % 64 == 0 for piece in pieces)
    assert sum(piece.numel for piece in pieces) == numel
