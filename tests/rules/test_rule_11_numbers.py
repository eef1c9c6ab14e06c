"""Rule 11, numbers."""

from __future__ import annotations

import pytest
from tests.kit.core import (
    Desk,
    ServerKit,
    fence,
    segment,
    sent,
    written,
)

from paceline.messages import (
    Abort,
    Choose,
)
from paceline.types import Commit, Hyper


@pytest.mark.parametrize("whole", [False, True])
def test_slots_are_summed_in_slot_order(whole: bool) -> None:
    server = ServerKit(segment(slots=3, data_len=60), whole=whole)
    for slot in (2, 0, 1):
        server.push(0, slot, 5 + slot)
    if whole:
        for slot in (2, 0, 1):
            server.tell(Choose(1, 0, 1, 0, slot, fence(5 + slot)))
    assert server.slots_added(0) == ["5", "6", "7"]


def test_two_slots_of_a_step_that_disagree_on_hyper_parameters_fail_the_job() -> None:
    desk = Desk().start().initialise()
    grants = [desk.lease(w) for w in desk.workers]
    other: Hyper = ({"lr": 0.2},)
    desk.seal("worker-0", grants[0])
    desk.seal("worker-1", grants[1], hyper=other)
    effects = desk.ready("server-0", 0, *(g.fence for g in grants))
    assert written(effects, Commit) == []
    (abort, *_) = sent(effects, Abort)
    assert "slots 0 and 1 of step 0 disagree" in abort.reason
    assert "0.2" in abort.reason
